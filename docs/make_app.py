"""Takes docs/app.png and docs/app_narrow.png from `mspcaps app` with the shipped models; needs chromium.

PYTHONPATH=src python docs/make_app.py [WEIGHTS ...]
"""

import sys
import time
from pathlib import Path

from mspcaps.app import ModelStore
from mspcaps.app.server import start
from mspcaps.files import write_atomically

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "app"))

from chromium import Chromium  # noqa: E402 - lives with the tests


def slide(page: Chromium, name: str, value: float) -> None:
    page.run(
        f"(() => {{ const s = document.querySelector('#{name} input[type=range]'); s.value = {value};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def shoot(url: str, name: str, width: int, last: str, margin: int) -> None:
    """A horse, slightly turned and attacked; the picture ends below the element that `last` selects."""
    with Chromium(width) as page:
        page.open(url)
        page.wait("document.querySelector('#answer h2.says')")
        page.run("document.querySelectorAll('.samples button')[7]?.click()")
        slide(page, "rotation", 12)
        slide(page, "fgsm", 1)
        page.wait("document.querySelector('#answer .lead').innerText.includes('untouched')")
        time.sleep(1)  # the last of the changes
        page.end_at(last, margin)
        write_atomically(DOCS / name, page.screenshot())


if __name__ == "__main__":
    running = start(ModelStore([Path(word) for word in sys.argv[1:]]))
    try:
        shoot(running.url, "app.png", 1280, "#tree", 40)
        shoot(running.url, "app_narrow.png", 390, "#answer .small", 8)
    finally:
        running.close()
