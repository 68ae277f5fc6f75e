"""Takes docs/quickstart.png from the page of the last `mspcaps quickstart`; needs chromium.

PYTHONPATH=src python docs/make_quickstart.py [PAGE]
"""

import sys
from pathlib import Path

from mspcaps.files import write_atomically

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "app"))

from chromium import Chromium  # noqa: E402 - lives with the tests

if __name__ == "__main__":
    shown = Path(sys.argv[1] if sys.argv[1:] else DOCS.parent / "runs" / "quickstart" / "index.html")
    with Chromium(1200) as page:
        page.open(shown.resolve().as_uri())
        page.wait("document.querySelector('.confusion')")
        page.end_at("figure:has(.confusion)", 40)  # the images below it are many
        write_atomically(DOCS / "quickstart.png", page.screenshot())
