"""The site's style sheet begins with the colours and fonts of the result pages, so that both stay the same.

A result page follows the system; the site has a switch, so each of the two sets of colours belongs to one scheme.
"""

import re
from pathlib import Path
from typing import Any

DESIGN = Path(__file__).parents[2] / "src" / "mspcaps" / "pages" / "templates" / "design.css"
STYLE = "assets/site.css"
SCHEMES = ("default", "slate")  # light and dark, as Material calls them


def colours(design: str) -> str:
    """The two sets of variables of design.css as rules for the two schemes."""
    light, dark = re.findall(r":root \{(.*?)\}", design, flags=re.DOTALL)
    both = {"default": light, "slate": light + dark}  # fonts are written once
    return "\n".join(f'[data-md-color-scheme="{scheme}"] {{{both[scheme]}}}' for scheme in SCHEMES)


def on_post_build(config: Any) -> None:
    """Called by mkdocs once the site is there."""
    sheet = Path(config.site_dir) / STYLE
    sheet.write_text(colours(DESIGN.read_text(encoding="utf-8")) + "\n" + sheet.read_text(encoding="utf-8"), "utf-8")
