"""From the bytes of a stranger to a picture, without a server."""

import base64
import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hostile import PATHS, all_uploads, noise, save
from PIL import Image

from mspcaps.app.uploads import (
    MAX_SIDE,
    MAX_TEXT_CHARS,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_PIXELS,
    PREFIX,
    accept,
    decode_picture,
)
from mspcaps.data.pictures import read_picture
from mspcaps.errors import MspcapsError
from mspcaps.pages import image_url


def opened(text: str) -> Image.Image:
    assert text.startswith(PREFIX)
    return Image.open(io.BytesIO(base64.b64decode(text.removeprefix(PREFIX))))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_small_pictures_keep_every_pixel(mode, tmp_path):
    (tmp_path / "a.png").write_bytes(save(noise(mode), "PNG"))
    text = accept((tmp_path / "a.png").read_bytes())
    assert np.array_equal(np.asarray(opened(text)), np.asarray(noise(mode)))
    for size, channels in (((32, 32), 1), ((28, 30), 3)):
        straight = read_picture(tmp_path / "a.png", size, channels)
        assert np.array_equal(decode_picture(text, size, channels), straight), "the same as `mspcaps predict` sees"


def test_large_pictures_are_shrunk_once():
    text = accept(save(noise(size=(2000, 500)), "JPEG"))
    assert opened(text).size == (MAX_SIDE, MAX_SIDE // 4)
    assert opened(accept(save(Image.new("L", (5000, 1), 7), "PNG"))).size == (MAX_SIDE, 1)
    worst = image_url(np.random.default_rng(0).integers(0, 256, (3, MAX_SIDE, MAX_SIDE), dtype=np.uint8))
    assert len(worst) < 0.6 * MAX_TEXT_CHARS


@pytest.mark.slow
def test_photographs_of_phones_are_taken():
    photo = save(Image.effect_noise((4032, 3024), 90).convert("RGB"), "JPEG", quality=98)
    assert 8 << 20 < len(photo) < MAX_UPLOAD_BYTES
    assert opened(accept(photo)).size == (MAX_SIDE, MAX_SIDE * 3 // 4)


def test_it_stands_upright_and_transparent_is_white():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert opened(accept(save(noise(size=(40, 20)), "JPEG", exif=exif))).size == (20, 40)
    clear = accept(save(Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "PNG"))
    assert decode_picture(clear, (4, 4), 3).min() == 255


@pytest.mark.slow
def test_limits_are_told_before_anything_is_decoded(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pixels were decoded")

    large = [save(Image.new("1", size), "PNG") for size in ((5000, 5001), (9000, 9000), (20000, 20000))]
    monkeypatch.setattr(Image.Image, "load", forbidden)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", forbidden)
    for data in large:  # one limit, however far beyond it, and in the unit in which the page tells it
        with pytest.raises(MspcapsError, match=f"limit (is|of) {MAX_UPLOAD_PIXELS // 10**6} megapixels"):
            accept(data)
    with pytest.raises(MspcapsError, match=f"limit is {MAX_UPLOAD_BYTES / 10**6:.1f} MB"):
        accept(bytes(MAX_UPLOAD_BYTES + 1))
    with pytest.raises(MspcapsError, match="no bytes"):
        accept(b"")


@pytest.mark.slow
def test_hostile_files_get_a_sentence_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    uploads = all_uploads()
    assert len(uploads) >= 200
    for name, data, good in uploads:
        try:
            text = accept(data)
        except MspcapsError as error:
            assert good is not True, f"{name}: {error}"
            assert "\n" not in str(error) and str(tmp_path) not in str(error), name
        else:
            assert good is not False, name
            assert max(opened(text).size) <= MAX_SIDE and len(text) <= MAX_TEXT_CHARS, name
    assert os.listdir(tmp_path) == []


BAD_TEXTS = [
    None, "", 7, [], {}, {"path": "/etc/passwd"}, *PATHS, PREFIX + "!!!", PREFIX + "AAAA",
    PREFIX + "A" * MAX_TEXT_CHARS,
    PREFIX + base64.b64encode(save(Image.new("1", (1000, 1000)), "PNG")).decode(), PREFIX + "ü", float("nan"),
    "data:image/svg+xml;base64,AAAA", b"bytes",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: repr(text)[:30])
def test_texts_that_are_no_pictures(text):
    with pytest.raises(MspcapsError) as caught:
        decode_picture(text, (32, 32), 1)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_paths_are_never_opened():
    with pytest.raises(MspcapsError, match="data:image/png"):
        decode_picture(str(Path(__file__)), (32, 32), 1)
