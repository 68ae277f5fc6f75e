"""Reading picture files safely: the header is checked before any pixel is decoded.

Nothing here imports torch: an exported model classifies pictures with numpy and onnxruntime alone.
"""

import logging
import os
import struct
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mspcaps.errors import MspcapsError

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "AVIF")  # Pillow's names
KINDS = "PNG, JPEG, BMP, WebP, GIF, TIFF, PPM, PGM or AVIF picture"
HEIC = frozenset((".heic", ".heif"))  # with the extra `heic`
SUFFIXES = HEIC | {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif"),
}
MAX_NAMED = 3  # broken pictures named in one message; the rest are counted
MAX_PIXELS = 1 << 26  # 64 megapixels; a header may claim more than fits into memory
MAX_DECODE_SCALE = 4  # a large photograph is decoded at about this many times the requested size, then resized
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in a grey value, as in Pillow
_GREY_MODES = frozenset(("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"))
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF tag and values
# what Pillow raises on damaged pictures, collected by feeding it tens of thousands of them
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError),
    RuntimeError,  # AVIF
    *(struct.error, zlib.error, Image.DecompressionBombError),
)


# Our own sentence says what is wrong with a file; Pillow must not log it to stderr as well.
logging.getLogger("PIL").addHandler(logging.NullHandler())

# All threads share the warning filters: two that save and restore them at the same time would leave the wrong ones.
_warnings_lock = threading.Lock()

Skipped = Counter[str]  # suffix -> number of files that are not pictures


def pictures_below(
    folder: Path, onerror: Callable[[OSError], None] | None = None, skipped: Skipped | None = None
) -> Iterator[str]:
    """Paths of the files with a picture's suffix, in any order; hidden files and linked folders are left out. `skipped`
    counts the files with other suffixes."""
    for place, _, files in os.walk(folder, onerror=onerror):
        for file in files:
            suffix = os.path.splitext(file)[1].lower()
            if file.startswith("."):
                continue
            if suffix in SUFFIXES:
                yield os.path.join(place, file)
            elif skipped is not None:
                skipped[suffix] += 1


def describe_skipped(skipped: Skipped) -> str:
    """files that are not read as pictures: 3 .txt, 1 without a suffix. The most frequent come first."""
    return "files that are not read as pictures: " + ", ".join(
        f"{count:,} {suffix or 'without a suffix'}" for suffix, count in skipped.most_common()
    )


def list_broken(errors: Sequence[str]) -> str:
    """The first MAX_NAMED errors, and the number of the others."""
    more = f"; and {len(errors) - MAX_NAMED:,} more" if len(errors) > MAX_NAMED else ""
    return "; ".join(errors[:MAX_NAMED]) + more


def describe_broken(errors: Sequence[str], total: int) -> str:
    """Which pictures of how many are left out, and why."""
    return f"{len(errors):,} of {total:,} pictures are left out: {list_broken(errors)}"


def find_pictures(paths: Iterable[str | Path]) -> Iterator[tuple[Path, str | None]]:
    """Each file as it is, and all pictures below each folder, sorted; with an error message if a folder cannot be read
    or holds none."""
    for path in map(Path, paths):
        path = path.expanduser()
        if not os.path.isdir(path):  # unlike Path.is_dir, this never raises
            yield path, None
            continue
        errors: list[OSError] = []
        pictures = sorted(map(Path, pictures_below(path, errors.append)))
        for error in errors:
            yield Path(error.filename), f"cannot read {error.filename}: {error.strerror}"
        if not pictures and not errors:
            yield path, f"{path} holds no {KINDS}"
        for picture in pictures:
            yield picture, None


def open_picture(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open a picture and read its header only; the caller closes it."""
    if os.path.exists(path) and not os.path.isfile(path):  # unlike the methods of Path, these never raise
        raise MspcapsError(f"cannot read {path}: it is not a plain file")  # opening a pipe would wait forever
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures, which are checked below, and damaged EXIF data
            picture = Image.open(path, formats=known_formats(path))
    except Image.DecompressionBombError as error:
        raise MspcapsError(
            f"{path} is refused: it claims more than the limit of {max_pixels // 10**6} megapixels"
        ) from error
    except UnidentifiedImageError as error:
        raise MspcapsError(f"cannot read {path}: it is not a {KINDS}") from error
    except _BROKEN as error:
        raise MspcapsError(f"cannot read {path}: {_reason(error)}") from error
    width, height = picture.size
    if width * height > max_pixels or width * height == 0:
        picture.close()
        limit = f"{max_pixels // 10**6} megapixels" if max_pixels >= 10**6 else f"{max_pixels:,} in total"
        raise MspcapsError(f"{path} is refused: it claims {width:,} x {height:,} pixels, but the limit is {limit}")
    return picture


def known_formats(path: Path) -> tuple[str, ...]:
    """The formats that a file may have, whatever its suffix; HEIC only with its suffix, as its reader is an extra."""
    if path.suffix.lower() not in HEIC:
        return FORMATS
    try:
        from pillow_heif import register_heif_opener
    except ImportError as error:
        raise MspcapsError(
            f"cannot read {path}: HEIC pictures need one more package, `pip install 'mspcaps[heic]'`"
        ) from error
    register_heif_opener()
    return (*FORMATS, "HEIF")


def read_header(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[tuple[int, int], bool]:
    """Upright size (height, width) and whether the picture is grey, from its header alone."""
    with open_picture(path, max_pixels) as picture:
        with _decoding(path):
            # asking a PNG or GIF for its EXIF data would decode the whole picture
            turned = (
                picture.format in ("JPEG", "MPO", "WEBP", "TIFF", "AVIF")
                and picture.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
            )
        width, height = picture.size
        return (width, height) if turned else (height, width), picture.mode in _GREY_MODES


def read_pixels(path: Path, channels: int) -> np.ndarray:
    """All pixels as stored, uint8 [H, W, channels] with 1 or 3 channels: for mosaics, where no value may change."""
    with open_picture(path) as picture, _decoding(path):
        pixels = np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] < channels:
        raise MspcapsError(f"{path} is a greyscale picture, but colour is needed")
    return pixels[..., :channels]


def read_picture(source: Path | Image.Image, size: tuple[int, int], channels: int) -> np.ndarray:
    """One picture as uint8 [channels, *size], upright, white where transparent, stretched to size (height, width).

    `source` is a file, or an open Pillow image, which stays as it is.
    """
    opened = nullcontext(source) if isinstance(source, Image.Image) else open_picture(source)
    with opened as picture, _decoding("the picture" if picture is source else source):
        if picture is not source:
            # a JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, in a fraction of the time and memory
            picture.draft(picture.mode, (MAX_DECODE_SCALE * max(size), MAX_DECODE_SCALE * max(size)))
        upright = _flatten(ImageOps.exif_transpose(picture)).convert("L" if channels == 1 else "RGB")
        if upright.size != (size[1], size[0]):
            upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.array(upright)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _flatten(picture: Image.Image) -> Image.Image:
    """Scale 16-bit greys to 8 bits, which Pillow would clip, and put white behind transparent pixels."""
    if picture.mode.startswith("I"):
        greys = np.asarray(picture).astype(np.int64)
        if greys.min(initial=0) < 0 or greys.max(initial=0) > 65535:
            raise MspcapsError("its grey values do not lie between 0 and 65535: save it with 8 or 16 bits")
        return Image.fromarray((greys >> 8).astype(np.uint8))
    if picture.mode == "F":
        raise MspcapsError("its pixels are floating-point numbers of unknown range: save it with 8 or 16 bits")
    if picture.has_transparency_data:
        layers = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return picture


@contextmanager
def _decoding(name: object) -> Iterator[None]:
    """Turn what a damaged picture raises into one sentence."""
    try:
        yield
    except (*_BROKEN, MspcapsError) as error:
        raise MspcapsError(f"cannot read {name}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, MspcapsError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory for it at the requested size"
    return f"the picture is broken ({str(error) or type(error).__name__})"
