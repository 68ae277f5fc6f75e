"""`make regenerate` would change nothing: every generated file is up to date."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from reproduction import pages
from tools import excerpts, regenerate

ROOT = Path(__file__).parents[2]


def test_pages_from_results_are_up_to_date() -> None:
    """Fails when a file was edited, or when results/ has grown since."""
    stale = [str(path) for path, text in pages.pages(ROOT / "results").items() if path.read_text("utf-8") != text]
    assert not stale, "run `make regenerate`"


def test_excerpts_are_up_to_date() -> None:
    (pinned,) = re.findall(r"^tyro==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    if importlib.metadata.version("tyro") != pinned:
        pytest.skip(f"tyro {pinned} lays out the help")
    quoted = excerpts.pages()
    assert {path.name for path in quoted} == {"commands.md", "recipes.md"}
    assert not [path.name for path, text in quoted.items() if path.read_text("utf-8") != text], "run `make regenerate`"


@pytest.mark.slow
def test_no_file_is_generated_twice() -> None:
    assert not set(pages.pages(ROOT / "results")) & set(excerpts.pages())
    assert len(regenerate.generated()) == len(pages.pages(ROOT / "results")) + len(excerpts.pages()) + 2


@pytest.mark.parametrize("text", ["", "<!-- a -->", "<!-- /a --><!-- a -->", 2 * "<!-- a --><!-- /a -->"])
def test_a_page_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(pages.MspcapsError, match="README"):
        pages.with_block(text, "a", "new", "README.md")
    assert pages.with_block("x<!-- a -->old<!-- /a -->y", "a", "new", "p").startswith("x<!-- a -->\n")
