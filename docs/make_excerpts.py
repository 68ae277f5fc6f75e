"""Copies what docs/ quotes from the source tree into the pages, between marks; a test compares, so it cannot go stale.

    <!-- source: capsules/squash.py squash -->      a function, class or method (Class.method)
    <!-- /source -->
    <!-- source: models/mspcaps.py MSPCaps.forward  only the statements in it that begin like this, each of which must
    return length( -->                              exist exactly once; a dash in place of the name: of the module
    <!-- /source -->
    <!-- fields: training/recipe.py Recipe -->      a table of a dataclass: field, type, default, docstring
    <!-- /fields -->
    <!-- help -->                                   what `--help` prints, a section for each command
    <!-- /help -->

PYTHONPATH=src python docs/make_excerpts.py
"""

import ast
import contextlib
import io
import os
import re
import textwrap
from itertools import pairwise
from pathlib import Path

from mspcaps.cli import COMMANDS, DATA, main
from mspcaps.files import write_atomically
from mspcaps.pages.grid import grid

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "mspcaps"
MARKED = re.compile(r"^(<!-- (source|fields|help)(?:: (.*?))? -->\n).*?^(<!-- /\2 -->)$", re.MULTILINE | re.DOTALL)
WIDTH = "84"  # characters that a code block of the site holds in a window of 1280 pixels
Named = ast.FunctionDef | ast.ClassDef


def with_excerpts(page: str) -> str:
    """The Markdown of a page with everything between its marks made anew."""

    def made(match: re.Match[str]) -> str:
        request = (match[3] or "").splitlines()
        try:
            text = reference() if match[2] == "help" else (code if match[2] == "source" else fields)(request)
        except (LookupError, OSError) as error:
            raise LookupError(f"{' '.join(request)}: {error}") from error
        return f"{match[1]}\n{text}\n\n{match[4]}"

    return MARKED.sub(made, page)


def code(request: list[str]) -> str:
    """-> a Python block with the name of its file above it."""
    file, name = request[0].split()
    text = (SOURCE / file).read_text(encoding="utf-8")
    node = ast.parse(text) if name == "-" else find(ast.parse(text), name)
    if len(request) == 1:
        shown = lines_of(node, text)
    else:
        shown = "\n".join(lines_of(statement(node, text, begin), text) for begin in request[1:])
    where = f"`{file}`" if name == "-" else f"`{file}` · `{name}`"
    return f"{where}\n\n```python\n{shown}\n```"


def fields(request: list[str]) -> str:
    """-> a Markdown table of a dataclass whose fields have docstrings."""
    file, name = request[0].split()
    text = (SOURCE / file).read_text(encoding="utf-8")
    body = find(ast.parse(text), name).body
    rows = []
    for field, note in pairwise(body):
        if isinstance(field, ast.AnnAssign):
            if not (isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant)):
                raise LookupError(f"{ast.unparse(field.target)} has no docstring")
            kind = ast.unparse(field.annotation).replace(" | ", "` or `")  # a bar would end the cell
            default = ast.unparse(field.value).replace("field(default_factory=dict)", "{}") if field.value else ""
            rows.append((f"`{ast.unparse(field.target)}`", f"`{kind}`", f"`{default}`", str(note.value.value)))
    return "\n".join(grid(("field", "type", "default", "meaning"), rows))


def find(tree: ast.AST, name: str) -> Named:
    """The function or class of this name; Class.method goes one deeper."""
    node: ast.AST = tree
    for part in name.split("."):
        found = [child for child in ast.iter_child_nodes(node) if isinstance(child, Named) and child.name == part]
        if len(found) != 1:
            raise LookupError(f"there is no {part} any more")
        node = found[0]
    assert isinstance(node, Named)
    return node


def statement(node: ast.AST, text: str, begin: str) -> ast.AST:
    """The one statement inside that begins so; the innermost, where a compound one begins with another."""
    found = [
        child
        for child in ast.walk(node)
        if isinstance(child, ast.stmt) and (ast.get_source_segment(text, child) or "").startswith(begin)
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} statements begin with {begin!r}, not one")
    return found[0]


def lines_of(node: ast.AST, text: str) -> str:
    """Whole lines, comments at their ends included, decorators too, moved to the left margin."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))  # type: ignore[attr-defined]


def reference() -> str:
    """-> a section for each command."""
    commands = [command for command in COMMANDS if command != "data"]
    place = list(COMMANDS).index("data")
    commands[place:place] = [f"data {command}" for command in DATA]
    return "\n\n".join(f"## {command}\n\n```{{.text .help}}\n{help_of(command)}\n```" for command in commands)


def help_of(command: str) -> str:
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(printed):
            status = main([*command.split(), "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).strip()
    if status or f"usage: mspcaps {command}" not in text:
        raise LookupError(f"`mspcaps {command} --help` ended with {status}")
    return "\n".join(wrapped(line.rstrip()) for line in text.splitlines())


def wrapped(line: str) -> str:
    """The description of a command and its usage come as one long line each; tables of options are wrapped already."""
    if line.startswith(" "):
        return line
    whole = re.sub(r"\[[^][]*\]", lambda option: option[0].replace(" ", "\0"), line)  # an option is not broken
    indent = " " * 7 if line.startswith("usage") else ""
    return textwrap.fill(whole, int(WIDTH), subsequent_indent=indent, break_on_hyphens=False).replace("\0", " ")


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        if (page := path.read_text(encoding="utf-8")) != (made := with_excerpts(page)):
            write_atomically(path, made)
            print(path)
