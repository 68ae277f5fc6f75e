"""The frame of a page, and pictures inside it."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from mspcaps.pages import PREFIX, image_url, skeleton, stylesheet


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_picture_inside_a_page_keeps_every_pixel(channels):
    image = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    stored = Image.open(io.BytesIO(base64.b64decode(image_url(image).removeprefix(PREFIX))))
    wanted = image.transpose(1, 2, 0) if channels == 3 else image[0]
    assert np.array_equal(np.asarray(stored), wanted)


def test_the_frame_holds_what_it_is_given(tmp_path):
    (tmp_path / "own.css").write_text(".mine { color: red; }\n")
    css = stylesheet(tmp_path / "own.css")
    assert css.startswith(":root {") and css.endswith(".mine { color: red; }\n")
    html = skeleton("a < b", css, "<p>text</p>", '<meta name="x" content="y">')
    assert "<title>a &lt; b</title>" in html and "<main><p>text</p></main>" in html and css in html
    assert html.index('charset="utf-8"') < html.index('name="x"') < 200
