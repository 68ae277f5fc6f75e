"""`make regenerate` would change nothing: every generated file is what it should be."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from reproduction import pages
from tools import excerpts, regenerate

ROOT = Path(__file__).parents[2]


def test_what_is_made_of_results_is_what_results_say() -> None:
    """Fails when a file was edited, or when results/ has grown since."""
    stale = [str(path) for path, text in pages.pages(ROOT / "results").items() if path.read_text("utf-8") != text]
    assert not stale, "run `make regenerate`"


def test_what_is_quoted_from_the_program_is_there_today() -> None:
    (pinned,) = re.findall(r"^tyro==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    if importlib.metadata.version("tyro") != pinned:
        pytest.skip(f"tyro {pinned} lays out the help")
    made = excerpts.pages()
    assert {path.name for path in made} == {"commands.md", "recipes.md"}
    assert not [path.name for path, text in made.items() if path.read_text("utf-8") != text], "run `make regenerate`"


@pytest.mark.slow
def test_no_file_is_made_twice() -> None:
    assert not set(pages.pages(ROOT / "results")) & set(excerpts.pages())
    assert len(regenerate.generated()) == len(pages.pages(ROOT / "results")) + len(excerpts.pages()) + 2


@pytest.mark.parametrize("text", ["", "<!-- a -->", "<!-- /a --><!-- a -->", 2 * "<!-- a --><!-- /a -->"])
def test_a_page_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(pages.MspcapsError, match="README"):
        pages.with_block(text, "a", "new", "README.md")
    assert pages.with_block("x<!-- a -->old<!-- /a -->y", "a", "new", "p").startswith("x<!-- a -->\n")
