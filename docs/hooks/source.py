"""Lines of our source in a page, taken from the files when the site is built, so that they cannot drift.

    ```source
    capsules/squash.py squash                a function, class or method (Class.method), whole
    ```
    ```source
    models/mspcaps.py MSPCaps.forward        of it, or with a dash in its place of the module, only the statements
    return length(                           that begin so, each of which must be there exactly once
    ```
    ```fields
    training/recipe.py Recipe                a table of a dataclass: field, type, default, docstring
    ```

What is not there ends the build.
"""

import ast
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

SOURCE = Path(__file__).parents[2] / "src" / "mspcaps"
FENCE = re.compile(r"^```(source|fields)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
Named = ast.FunctionDef | ast.ClassDef


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""

    def replaced(match: re.Match[str]) -> str:
        try:
            return (code if match[1] == "source" else fields)(match[2].splitlines())
        except (LookupError, OSError, ValueError) as error:
            raise PluginError(f"{page.file.src_path}: {' '.join(match[2].split())}: {error}") from error

    return FENCE.sub(replaced, markdown)


def code(request: list[str]) -> str:
    """-> a Python block with the name of its file above it."""
    file, name = request[0].split()
    text = (SOURCE / file).read_text(encoding="utf-8")
    node = ast.parse(text) if name == "-" else find(ast.parse(text), name)
    if len(request) == 1:
        shown = lines_of(node, text)
    else:
        shown = "\n".join(lines_of(statement(node, text, begin), text) for begin in request[1:])
    where = file if name == "-" else f"{file} · {name}"
    return f'```python title="{where}"\n{shown}\n```'


def fields(request: list[str]) -> str:
    """-> a Markdown table of a dataclass whose fields have docstrings."""
    file, name = request[0].split()
    text = (SOURCE / file).read_text(encoding="utf-8")
    body = find(ast.parse(text), name).body
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field, note in pairwise(body):
        if isinstance(field, ast.AnnAssign):
            if not (isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant)):
                raise LookupError(f"{ast.unparse(field.target)} has no docstring")
            kind, default = ast.unparse(field.annotation), ast.unparse(field.value) if field.value else ""
            rows.append(f"| `{ast.unparse(field.target)}` | `{kind}` | `{default}` | {note.value.value} |")
    return "\n".join(rows)


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
