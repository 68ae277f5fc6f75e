"""Room for wide pages. On GitHub their front matter would be shown as a table, so what hides the contents is here."""

import re
from typing import Any

WIDE = ("results.md", "baselines.md")
LONG = re.compile(r"<td>(?:[^< ]*\+[^< ]*|<code>mspcaps train [^<]*</code>)</td>")  # paper+epochs=60+held_out=10000


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_path not in WIDE:
        return html
    page.meta["hide"] = ["toc"]
    return LONG.sub(lambda cell: re.sub(r"(?=[+=])|(?<=,)|(?<=\w/)", "<wbr>", cell[0]), html)
