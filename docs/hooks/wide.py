"""Where lines break. What hides the contents of wide pages is here, since GitHub would show front matter as a table."""

import re
from typing import Any

WIDE = ("results.md", "baselines.md", "speed.md")
LONG = re.compile(r"<td>(?:[^< ]*\+[^< ]*|<code>mspcaps train [^<]*</code>)</td>")  # paper+epochs=60+held_out=10000
WHOLE = re.compile(r"(?<![\w-])(?:[A-Z]\w*-[A-Z0-9]\w*|--[a-z][\w.-]*)")  # MSPCaps-T, --img-size


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_path in WIDE:
        page.meta["hide"] = ["toc"]
        html = LONG.sub(lambda cell: re.sub(r"(?=[+=])|(?<=,)|(?<=\w/)", "<wbr>", cell[0]), html)
    html = re.sub(r"<td([^>]*)>(.*?)</td>", mark_long, html)
    return re.sub(r"(?<=>)[^<]+", lambda text: WHOLE.sub(r'<span class="whole">\g<0></span>', text[0]), html)


def mark_long(cell: re.Match[str]) -> str:
    """A cell of words needs some width; without it a table on a phone has a word in every line."""
    words = re.sub(r"<[^>]+>", "", cell[2])
    return f'<td{cell[1]} class="words">{cell[2]}</td>' if len(words) > 24 else cell[0]
