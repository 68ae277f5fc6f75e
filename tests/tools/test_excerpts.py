"""Excerpts in docs/: the help fits its block, and what no longer exists cannot be quoted."""

import pytest

from tools import excerpts


def test_help_fits_into_its_block() -> None:
    lines = excerpts.reference().splitlines()
    assert [line for line in lines if len(line) > int(excerpts.WIDTH)] == []
    assert "       [--out PATH]" in excerpts.wrap(f"usage: mspcaps x {'[--long STR] ' * 5}[--out PATH]")


@pytest.mark.parametrize(
    ("request_", "value"),
    [("training/recipe.py Recipes", "Recipes"), ("models/mspcaps.py Config", "docstring")],
)
def test_what_is_gone_cannot_be_quoted(request_: str, value: str) -> None:
    with pytest.raises(LookupError, match=value):
        excerpts.with_excerpts(f"<!-- fields: {request_} -->\n<!-- /fields -->\n")
