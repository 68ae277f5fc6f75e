"""Writes the measured figures of results/explain/ into docs/explain.md, between its marks; a test compares the two."""

from pathlib import Path

from mspcaps.explanation.tables import with_block
from mspcaps.files import write_atomically

ROOT = Path(__file__).parent.parent

if __name__ == "__main__":
    page = ROOT / "docs" / "explain.md"
    write_atomically(page, with_block(page.read_text(encoding="utf-8"), ROOT / "results" / "explain", str(page)))
