"""Untrusted pictures: bytes -> a small picture that the browser keeps and sends along with every question.

Bytes are counted first, then the header is checked, and only then are pixels decoded (data/pictures.py). A picture that
is larger than the app needs is shrunk once, here; its file is gone when `accept` returns, and the server keeps nothing.
"""

import base64
import binascii
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mspcaps.data import read_header, read_picture
from mspcaps.errors import MspcapsError
from mspcaps.files import format_bytes
from mspcaps.pages import PREFIX, image_url

MAX_UPLOAD_BYTES = 32_000_000  # phone photographs have up to 20 MB
MAX_UPLOAD_PIXELS = 25_000_000  # and 12 or 24 megapixels
MAX_SIDE = 256  # pixels of the longer side that are kept: scores differ slightly from those of the full picture
MAX_TEXT_CHARS = 1 << 19  # of a kept picture as a data URL: 256 x 256 pixels of pure noise take half of it
MAX_TEXT_PIXELS = 1 << 18


def accept(data: bytes) -> str:
    """An uploaded file -> the picture as a data URL, upright and at most MAX_SIDE wide and high."""
    with picture_file(data, MAX_UPLOAD_BYTES, MAX_UPLOAD_PIXELS) as path:
        (height, width), grey = read_header(path)
        scale = min(1.0, MAX_SIDE / max(height, width))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        return image_url(read_picture(path, size, 1 if grey else 3))


def decode_picture(text: object, size: tuple[int, int], channels: int) -> np.ndarray:
    """A data URL from `accept` or the drawing board, which the browser may have changed -> uint8 [channels, *size]."""
    if not isinstance(text, str) or not text:
        raise MspcapsError("there is no picture yet: pick, upload or draw one")
    if len(text) > MAX_TEXT_CHARS:
        raise MspcapsError(f"the picture has {len(text):,} characters as text, but the limit is {MAX_TEXT_CHARS:,}")
    if not text.startswith(PREFIX):
        raise MspcapsError(f"the picture must be a data URL that begins with {PREFIX}")
    try:
        data = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MspcapsError("the text of the picture is not valid base64") from error
    with picture_file(data, MAX_TEXT_CHARS, MAX_TEXT_PIXELS) as path:
        return read_picture(path, size, channels)


@contextmanager
def picture_file(data: bytes, max_bytes: int, max_pixels: int) -> Iterator[Path]:
    """The bytes as a temporary file whose header has been checked.

    Errors raised inside the block say "the picture" instead of the temporary path.
    """
    if not data:
        raise MspcapsError("the picture is empty: it has no bytes")
    if len(data) > max_bytes:
        raise MspcapsError(f"the picture has {format_bytes(len(data))}, but the limit is {format_bytes(max_bytes)}")
    with tempfile.TemporaryDirectory(prefix="mspcaps-app-") as folder:
        path = Path(folder) / "picture"
        path.write_bytes(data)
        try:
            read_header(path, max_pixels)
            yield path
        except MspcapsError as error:
            raise MspcapsError(str(error).replace(str(path), "the picture")) from error
