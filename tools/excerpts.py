"""Copies what docs/ quotes from the code into the pages, between markers; a test keeps them up to date.

<!-- fields: training/recipe.py Recipe -->      a table of a dataclass: field, type, default, docstring
<!-- /fields -->
<!-- help -->                                   what `--help` prints, a section for each command
<!-- /help -->
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
from mspcaps.pages import markdown_table

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mspcaps"
MARKED = re.compile(r"^(<!-- (fields|help)(?:: (.*?))? -->\n).*?^(<!-- /\2 -->)$", re.MULTILINE | re.DOTALL)
WIDTH = "84"  # characters that a code block of the site holds in a window of 1280 pixels


def with_excerpts(page: str) -> str:
    """The Markdown of a page with new text between its markers."""

    def block(match: re.Match[str]) -> str:
        text = reference() if match[2] == "help" else fields(*(match[3] or "").split())
        return f"{match[1]}\n{text}\n\n{match[4]}"

    return MARKED.sub(block, page)


def fields(file: str, name: str) -> str:
    """-> a Markdown table of a dataclass whose fields have docstrings."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if body is None:
        raise LookupError(f"{file} has no class {name}")
    rows = []
    for field, note in pairwise(body):
        if isinstance(field, ast.AnnAssign):
            if not (isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant)):
                raise LookupError(f"{ast.unparse(field.target)} has no docstring")
            kind = ast.unparse(field.annotation).replace(" | ", "` or `")  # a bar would end the cell
            default = ast.unparse(field.value).replace("field(default_factory=dict)", "{}") if field.value else ""
            rows.append((f"`{ast.unparse(field.target)}`", f"`{kind}`", f"`{default}`", str(note.value.value)))
    return markdown_table(("field", "type", "default", "meaning"), rows)


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
    return "\n".join(wrap(line.rstrip()) for line in text.splitlines())


def wrap(line: str) -> str:
    """The description and the usage of a command are one long line each; tables of options are already wrapped."""
    if line.startswith(" "):
        return line
    whole = re.sub(r"\[[^][]*\]", lambda option: option[0].replace(" ", "\0"), line)  # do not break an option
    indent = " " * 7 if line.startswith("usage") else ""
    return textwrap.fill(whole, int(WIDTH), subsequent_indent=indent, break_on_hyphens=False).replace("\0", " ")


def pages() -> dict[Path, str]:
    """Every page of docs/ that has markers, with its text up to date."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    return {path: with_excerpts(text) for path, text in texts.items() if MARKED.search(text)}
