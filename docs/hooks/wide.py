"""Room for the tables of docs/results.md. It is written by `mspcaps report`, so it cannot ask for it itself."""

import re
from typing import Any

LONG = re.compile(r"<td>(?:[^< ]*\+[^< ]*|<code>mspcaps train [^<]*</code>)</td>")  # paper+epochs=60+held_out=10000


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_path != "results.md":
        return html
    page.meta["hide"] = ["toc"]
    return LONG.sub(lambda cell: re.sub(r"(?=[+=])|(?<=,)|(?<=\w/)", "<wbr>", cell[0]), html)
