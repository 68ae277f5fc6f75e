"""The site of docs/: it builds strictly, fetches nothing when read, and shows the source as it is."""

import html
import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from types import ModuleType

import pytest

from mspcaps.cli import COMMANDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
HERE = all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "latex2mathml"))
needs_mkdocs = pytest.mark.skipif(not HERE, reason="the extra `docs` is not installed")


def built(place: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = built(place)
    assert done.returncode == 0, done.stderr
    return place


def text_of(page: Path) -> str:
    """As a reader sees it: no tags, entities resolved."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{Path(name).stem}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@needs_mkdocs
def test_every_page_is_built_and_no_script_lies_about(site: Path) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}
    assert not list(site.rglob("*.py")) and not list(site.rglob("*.sh"))


@pytest.mark.slow
@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A link that a reader may follow is fine; a script, style, font or picture from another machine is not."""
    for page in site.rglob("*.html"):
        found = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*\"(?:https?:)?//[^\"]*\"", page.read_text())
        assert not found, (page.name, found)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style.name
    assert (site / "search" / "search_index.js").is_file(), "search from the file system"


@needs_mkdocs
def test_the_site_has_the_colours_and_fonts_of_the_result_pages(site: Path) -> None:
    """In both schemes, and nothing is used that they do not define."""
    sheet = (site / "assets" / "site.css").read_text(encoding="utf-8")
    design = (ROOT / "src/mspcaps/pages/templates/design.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"(--[\w-]+): ([^;]+);", part)) for part in design.split("* {")[0].split("@media"))
    schemes = dict(re.findall(r'\[data-md-color-scheme="(\w+)"\] \{(.*?)\}', sheet, flags=re.DOTALL))
    for scheme, wanted in (("default", light), ("slate", light | dark)):
        assert dict(re.findall(r"(--[\w-]+): ([^;]+);", schemes[scheme])) == wanted
    assert dark["--paper"] != light["--paper"] and set(dark) < set(light)
    assert {name for name in re.findall(r"var\((--[\w-]+)\)", sheet) if not name.startswith("--md-")} <= set(light)


@needs_mkdocs
def test_formulas_are_shown(site: Path) -> None:
    page = (DOCS / "paper.md").read_text(encoding="utf-8")
    formulas = re.findall(r"<math.*?</math>", (site / "paper.html").read_text(encoding="utf-8"))
    inline = re.findall(r"(?<!\$)\$[^$\n ][^$]*\$(?!\$)", page)
    assert len(formulas) == len(re.findall(r"\$\$.+?\$\$", page)) + len(inline) > 5
    assert not any("\\" in formula for formula in formulas)


def test_github_can_show_the_formulas() -> None:
    """It takes a backslash before punctuation for its own, refuses some macros and wants a blank line after a tag."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    for formula in re.findall(r"\$\$?(.+?)\$\$?", pages):
        assert not re.search(r"\\[^\w\s]|\\operatorname", formula), formula
    assert not re.search(r"^<div[^>]*>\n(?!<div|\n)", pages, flags=re.MULTILINE)


def test_names_stay_whole_and_words_have_room() -> None:
    hook, page = script("hooks/wide"), types.SimpleNamespace(file=types.SimpleNamespace(src_path="a.md"), meta={})
    words = "the mean of the finest capsules"
    html = hook.on_page_content(f'<p title="MSPCaps-T">MSPCaps-T --img-size</p><td>{words}</td><td>a-b</td>', page)
    assert re.findall(r'<span class="whole">(.*?)</span>', html) == ["MSPCaps-T", "--img-size"]
    assert re.findall(r'class="words">(.*?)<', html) == [words] and 'title="MSPCaps-T"' in html
    drawn = script("hooks/tex").mathml(r"a \thinspace \log |b|", "inline")
    assert "thinmathspace" not in drawn and drawn.count("em") == 2 and drawn.count('<mo lspace="0"') == 2


@needs_mkdocs
def test_the_tables_of_results_have_room(site: Path) -> None:
    """No table of contents beside them, and long names may be broken but are all there."""
    page, markup = (
        (DOCS / "results.md").read_text(encoding="utf-8"),
        (site / "results.html").read_text(encoding="utf-8"),
    )
    assert re.search(r'data-md-type="toc"\s+hidden', markup)
    names = set(re.findall(r"\| ([^| `]+\+[^| `]+) \|", page)) | set(re.findall(r"`(mspcaps train [^`]+)`", page))
    assert len(names) > 10 and not [name for name in names if name not in text_of(site / "results.html")]
    assert not [name for name in names if f">{name}<" in markup]


@needs_mkdocs
def test_commands_and_fields_are_on_the_site(site: Path) -> None:
    commands, recipes = text_of(site / "commands.html"), text_of(site / "recipes.html")
    for command in COMMANDS:
        assert f"usage: mspcaps {command}" in commands
    assert "--init STR" in commands
    assert "Draw every class equally often" in commands and "Draw every class equally often" in recipes


@needs_mkdocs
def test_what_is_not_tex_ends_the_build() -> None:
    from mkdocs.exceptions import PluginError

    for formula in (r"\nonsense x", r"\frac{1}{"):
        with pytest.raises(PluginError):
            script("hooks/tex").mathml(formula, "inline")


def test_the_navigation_names_every_page() -> None:
    named = re.findall(r"^ +- .*: (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in DOCS.glob("*.md")), "add the new page to mkdocs.yml"


def test_makefile_tells_where_it_is() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert "mkdocs build --strict" in recipe and "$(CURDIR)/site/index.html" in recipe
    assert re.search(r"^\.PHONY:.*\bdocs\b", recipe, flags=re.MULTILINE), "there is a folder of that name"
