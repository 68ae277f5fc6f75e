"""Takes the screenshots in docs/; needs chromium and, for the app, the extra `app`.

python -m tools.screenshots quickstart [PAGE]   docs/quickstart.png, from the page of the last `mspcaps quickstart`
python -m tools.screenshots explain PAGE        docs/explain.png, from a page of `mspcaps explain`
python -m tools.screenshots app [WEIGHTS ...]   docs/app.png and app_narrow.png, from `mspcaps app`
"""

import sys
import time
from pathlib import Path

from mspcaps.files import write_atomically

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "app"))

from chromium import Chromium  # type: ignore[import-not-found]  # noqa: E402 - lives with the tests


def shoot_file(page: Path, name: str, last: str, margin: int) -> None:
    """Of a page in a file, 1200 pixels wide; the screenshot ends below the element that `last` selects."""
    with Chromium(1200) as window:
        window.open(page.resolve().as_uri())
        window.wait(f"document.querySelector('{last}')")
        window.end_at(last, margin)
        write_atomically(ROOT / "docs" / name, window.screenshot())


def slide(window: Chromium, name: str, value: float) -> None:
    window.run(
        f"(() => {{ const s = document.querySelector('#{name} input[type=range]'); s.value = {value};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def shoot_app(url: str, name: str, width: int, last: str, margin: int) -> None:
    """A horse, slightly turned and attacked."""
    with Chromium(width) as window:
        window.open(url)
        window.wait("document.querySelector('#answer h2.says')")
        window.run("document.querySelectorAll('.samples button')[7]?.click()")
        slide(window, "rotation", 12)
        slide(window, "fgsm", 1)
        window.wait("document.querySelector('#answer .lead').innerText.includes('untouched')")
        time.sleep(1)  # until the page has settled
        window.end_at(last, margin)
        write_atomically(ROOT / "docs" / name, window.screenshot())


def app(weights: list[Path]) -> None:
    from mspcaps.app import ModelStore
    from mspcaps.app.server import start

    running = start(ModelStore(weights))
    try:
        shoot_app(running.url, "app.png", 1280, "#tree", 40)
        shoot_app(running.url, "app_narrow.png", 390, "#answer .small", 8)
    finally:
        running.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["quickstart", *pages]:
            page = Path(pages[0]) if pages else ROOT / "runs" / "quickstart" / "index.html"
            shoot_file(page, "quickstart.png", "figure:has(.confusion)", 40)  # the images below it are many
        case ["explain", page]:
            shoot_file(Path(page), "explain.png", "main", 0)
        case ["app", *weights]:
            app([Path(path) for path in weights])
        case _:
            sys.exit(__doc__)
