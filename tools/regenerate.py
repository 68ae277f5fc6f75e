"""Rewrites all generated files that are committed and need no measurement: `make regenerate`.

Pages, blocks and plots from results/ (reproduction/), tables of fields and the text of --help (excerpts), drawings.
Measurements come from reproduction/studies/, `mspcaps bench` and tools/export_table.py, screenshots from
tools/screenshots.py.
"""

import sys
from pathlib import Path

from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically
from reproduction import pages
from tools import drawings, excerpts

ROOT = Path(__file__).parent.parent


def generated() -> dict[Path, str]:
    """Every generated file with its text."""
    return {
        **pages.pages(ROOT / "results"),
        **excerpts.pages(),
        ROOT / "docs" / "architecture.svg": drawings.draw_architecture(),
        ROOT / "docs" / "cross_agreement.svg": drawings.draw_cross_agreement(),
    }


if __name__ == "__main__":
    try:
        for path, text in generated().items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
                print(f"changed: {path.relative_to(ROOT)}")
    except MspcapsError as error:
        sys.exit(f"error: {error}")
