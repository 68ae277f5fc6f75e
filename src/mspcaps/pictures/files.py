"""Single picture files, opened with care: the header is judged before any pixel is decoded."""

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mspcaps.errors import MspcapsError

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif"))
PIXEL_LIMIT = 1 << 26  # 64 megapixels; a header may promise more than any memory holds
ENOUGH = 4  # times the size that is asked for: what is decoded of a large photograph; resizing evens out the rest
_GREY_MODES = frozenset(("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"))
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF tag and values
# what Pillow raises on damaged pictures, found by feeding it tens of thousands of them
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)


def pictures_below(folder: Path, onerror: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """Paths of the files that are called like pictures, in any order; neither hidden files nor linked folders."""
    for place, _, files in os.walk(folder, onerror=onerror):
        for file in files:
            if os.path.splitext(file)[1].lower() in SUFFIXES and not file.startswith("."):
                yield os.path.join(place, file)


def open_picture(path: Path) -> Image.Image:
    """A picture of which only the header has been read; the caller closes it."""
    if os.path.exists(path) and not os.path.isfile(path):  # these raise nothing, unlike the methods
        raise MspcapsError(f"cannot read {path}: it is not a plain file")  # opening a pipe would wait for ever
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # judged below, with a lower limit
            picture = Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise MspcapsError(f"{path} is refused: it claims more than {PIXEL_LIMIT} pixels") from error
    except UnidentifiedImageError as error:
        raise MspcapsError(f"cannot read {path}: it is not a PNG, JPEG, BMP, WebP or GIF picture") from error
    except _BROKEN as error:
        raise MspcapsError(f"cannot read {path}: {_reason(error)}") from error
    width, height = picture.size
    if width * height > PIXEL_LIMIT or width * height == 0:
        picture.close()
        raise MspcapsError(
            f"{path} is refused: it claims {width}x{height} pixels, but the limit is {PIXEL_LIMIT} in total"
        )
    return picture


def read_form(path: Path) -> tuple[tuple[int, int], bool]:
    """Upright size (height, width) and whether the picture is grey, from its header alone."""
    with open_picture(path) as picture:
        try:
            # asking a PNG or GIF for its EXIF data would decode the whole picture
            turned = picture.format in ("JPEG", "WEBP") and picture.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
        except _BROKEN as error:
            raise MspcapsError(f"cannot read {path}: {_reason(error)}") from error
        width, height = picture.size
        return (width, height) if turned else (height, width), picture.mode in _GREY_MODES


def read_pixels(path: Path, channels: int) -> np.ndarray:
    """All pixels as stored, uint8 [H, W, channels] with channels 1 or 3: for mosaics, where no value may change."""
    with open_picture(path) as picture:
        try:
            pixels = np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
        except _BROKEN as error:
            raise MspcapsError(f"cannot read {path}: {_reason(error)}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] < channels:
        raise MspcapsError(f"{path} is a greyscale picture where colour is needed")
    return pixels[..., :channels]


def read_picture(source: Path | Image.Image, size: tuple[int, int], channels: int) -> np.ndarray:
    """One picture as uint8 [channels, *size], upright, white where transparent, stretched to size (height, width).

    `source` is a file, or a picture of Pillow, which is left as it was.
    """
    with nullcontext(source) if isinstance(source, Image.Image) else open_picture(source) as picture:
        try:
            if picture is not source:
                # a large photograph: JPEG gives its blocks at 1/2, 1/4 or 1/8 as well, in a fraction of time and memory
                picture.draft(picture.mode, (ENOUGH * max(size), ENOUGH * max(size)))
            upright = _flatten(ImageOps.exif_transpose(picture)).convert("L" if channels == 1 else "RGB")
            if upright.size != (size[1], size[0]):
                upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except _BROKEN as error:
            name = "the picture" if picture is source else source
            raise MspcapsError(f"cannot read {name}: {_reason(error)}") from error
    pixels = np.array(upright)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _flatten(picture: Image.Image) -> Image.Image:
    """Pillow clips 16-bit greys and keeps the hidden colour of transparent pixels; this scales and covers instead."""
    if picture.mode.startswith("I"):
        return Image.fromarray((np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        layers = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return picture


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory for it in the requested size"
    return f"the picture is broken ({str(error) or type(error).__name__})"
