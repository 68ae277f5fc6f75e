"""A real browser: the page loads, shows a sample, takes a drawing and an upload, follows the sliders, calls nobody."""

import pytest
from app_makers import Server
from hostile import noise, save

pytest.importorskip("websocket", reason="websocket-client is not installed: pip install 'mspcaps[dev]'")
from chromium import Chromium, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no chromium on this machine")

SAYS = "document.querySelector('#answer h2.says').innerText"
LEAD = "document.querySelector('#answer .lead').innerText"
PARTS = "[...document.querySelectorAll('#answer rect.part')].map((r) => r.outerHTML).join('')"
LENGTHS = "document.querySelector('#answer .lengths').innerText"


def tab(page: Chromium, number: int) -> None:
    page.run(f"document.querySelectorAll('#sources [role=tablist] [role=tab]')[{number}].click()")


def slide(page: Chromium, name: str, value: float) -> None:
    """As a hand on the slider does it."""
    page.run(
        f"(() => {{ const s = document.querySelector('#{name} input[type=range]'); s.value = {value};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def changed(page: Chromium, what: str, before: str) -> str:
    page.wait(f"document.querySelector('#answer h2.says') && {what} !== {before!r}")
    return page.run(what)


@pytest.mark.slow
def test_a_visit(server: Server, tmp_path):
    with Chromium() as page:
        page.open(server.url)
        page.wait("document.querySelector('#answer h2.says')")
        assert page.run(SAYS).startswith("It says ")
        assert page.run("document.querySelector('#answer .lead b').innerText").startswith("It is “t-shirt”: ")
        assert page.run("document.querySelectorAll('#answer svg.big').length") == 4, "parts and heat of two classes"
        assert page.run("document.querySelectorAll('#answer rect.part').length") >= 14, "the overlay"
        assert page.run("document.querySelectorAll('#tree svg.tree').length") == 2
        assert page.run("document.querySelectorAll('#answer .lengths dt').length") == 10
        lengths = page.run(LENGTHS)

        page.click(".samples button:nth-child(3)")
        lengths = changed(page, LENGTHS, lengths)
        for name, value in (("rotation", 45), ("noise", 20), ("fgsm", 8)):
            slide(page, name, value)
            lengths = changed(page, LENGTHS, lengths)
        assert "For the untouched picture it" in page.run(LEAD)
        page.click("#reset")
        page.wait(f"!{LEAD}.includes('untouched')")
        lengths, parts = page.run(LENGTHS), page.run(PARTS)

        tab(page, 2)
        page.wait("document.querySelector('canvas')?.offsetWidth > 100")
        left, top, width, height = page.box("canvas")
        page.drag([(left + width * x, top + height * y) for x, y in ((0.3, 0.2), (0.7, 0.2), (0.5, 0.9), (0.3, 0.2))])
        lengths = changed(page, LENGTHS, lengths)
        assert page.run(PARTS) != parts
        assert not page.run("document.querySelector('#answer .lead b')"), "nobody knows what a drawing is"
        ink = "document.querySelector('canvas').getContext('2d').getImageData(128, 51, 1, 1).data[0]"
        assert page.run(ink) == 255, "the stroke is where the mouse went"

        tab(page, 1)
        page.wait("document.querySelector('.zone')?.offsetWidth > 100")
        (tmp_path / "bad.png").write_bytes(b"not a picture")
        page.choose_file(".zone input", tmp_path / "bad.png")
        page.wait("document.querySelector('.error').innerText.includes('is not a PNG, JPEG')")
        page.wait("!document.querySelector('#answer h2.says, #tree svg')")  # they were about another picture
        (tmp_path / "good.jpg").write_bytes(save(noise(size=(300, 200)), "JPEG"))
        page.choose_file(".zone input", tmp_path / "good.jpg")
        changed(page, LENGTHS, lengths)
        assert page.run("document.querySelector('.error').innerText") == ""

        page.resize(390, 800)
        assert page.run("document.documentElement.scrollWidth") <= 390, "a phone need not scroll sideways"
        assert page.strangers(server.url) == [], "no request leaves the machine"
        assert len(page.requests) > 10 and page.errors == []
