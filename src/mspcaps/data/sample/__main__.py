"""`python -m mspcaps.data.sample` makes the embedded sample anew."""

import sys
from pathlib import Path

from mspcaps.data.sample import make
from mspcaps.errors import MspcapsError

try:
    make(Path(__file__).parent)
except MspcapsError as error:
    sys.exit(f"error: {error}")
