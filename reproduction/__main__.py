"""`python -m reproduction` writes docs/results.md, ablations.md with its plots, speed.md, and the blocks of README.md,
docs/explain.md and docs/export.md from results/."""

import sys

from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically
from reproduction.pages import ROOT, pages

try:
    for path, text in pages(ROOT / "results").items():
        write_atomically(path, text)
        print(path.relative_to(ROOT))
except MspcapsError as error:
    sys.exit(f"error: {error}")
