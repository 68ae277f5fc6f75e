"""Files that nobody sends in good faith, and odd ones that somebody might: name, bytes and whether it is a picture."""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "AVIF")
PATHS = (
    "../../etc/passwd", "/etc/passwd", "..\\..\\windows\\win.ini", "file:///etc/passwd", "http://169.254.169.254/",
    "/dev/zero", "/proc/self/environ", "C:\\", "\\\\host\\share", "~/.ssh/id_rsa", "\0", "a" * 5000,
    "%2e%2e%2fetc%2fpasswd", "data:image/png;base64,", "data:text/html,<script>alert(1)</script>",
)  # fmt: skip


class Upload(NamedTuple):
    name: str
    data: bytes
    good: bool | None = False  # None: either answer will do


def save(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, rows: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    """A PNG whose header says what it likes."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def all_uploads() -> list[Upload]:
    return [*truncated(), *wrong(), *too_large(), *bombs(), *numbers(), *paths(), *flipped(), *odd()]


def truncated() -> Iterator[Upload]:
    for kind in FORMATS:
        whole = save(noise(), kind)
        for share in (0.01, 0.05, 0.2, 0.5, 0.8, 0.95):
            yield Upload(f"{kind} cut at {share}", whole[: max(1, int(share * len(whole)))], None)


def wrong() -> Iterator[Upload]:
    yield Upload("zero bytes", b"")
    yield Upload("one byte", b"\0")
    for name, data in {
        "text": b"hello", "html": b"<html><script>alert(1)</script>", "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "pdf": b"%PDF-1.7\n", "zip": b"PK\x03\x04" + bytes(100), "gzip": b"\x1f\x8b\x08" + bytes(50),
        "elf": b"\x7fELF" + bytes(99),
        "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.", "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n(%stderr) (w) file\n",
        "png mark only": b"\x89PNG\r\n\x1a\n", "gif mark only": b"GIF89a", "bmp mark only": b"BM",
        "jpeg mark only": b"\xff\xd8\xff",
        "webp mark only": b"RIFF\x10\0\0\0WEBP", "json": b'{"path": "/etc/passwd"}', "spaces": b" " * 1000,
    }.items():  # fmt: skip
        yield Upload(name, data)
    for kind in ("ICO", "TGA", "PCX", "SGI", "DDS"):
        yield Upload(f"a {kind}", save(noise(), kind))
    yield Upload("9 MB of nothing", bytes(9 << 20))
    yield Upload("BMP of 12 MB", save(Image.new("RGB", (2000, 2000)), "BMP"))


def too_large() -> Iterator[Upload]:
    for side in (4097, 10_000, 30_000, 65_535, 2**31 - 1):
        yield Upload(f"PNG that claims {side} x {side}", png(side, side, rows=bytes(1000)))
    yield Upload("PNG of real 5,000 x 5,000 pixels", save(Image.new("1", (5000, 5000)), "PNG"))
    grey = png(30_000, 30_000, rows=bytes(30_000 * (30_000 // 8 + 1)), depth=1, colour=0)
    yield Upload("PNG of real 30,000 x 30,000 pixels", grey)
    yield Upload("PNG 1 x 2^31-1", png(1, 2**31 - 1, rows=b"\0"))
    yield Upload("PNG 0 x 0", png(0, 0))
    yield Upload("PNG -1 x -1", png(2**32 - 1, 2**32 - 1))
    gif = bytearray(save(noise(), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"
    yield Upload("GIF with a screen of 65,535 x 65,535", bytes(gif))
    place = gif.index(b"\x2c", 13 + 768)
    gif[6:10] = struct.pack("<HH", 40, 30)
    gif[place + 5 : place + 9] = b"\xff\xff\xff\xff"
    yield Upload("GIF with a frame larger than its screen", bytes(gif), None)
    bmp = bytearray(save(noise(), "BMP"))
    for width, height in ((2**31 - 1, 2**31 - 1), (-1, -1), (0, 0), (2**31 - 1, 1)):
        bmp[18:26] = struct.pack("<ii", width, height)
        yield Upload(f"BMP that claims {width} x {height}", bytes(bmp))
    jpeg = bytearray(save(noise(), "JPEG"))
    place = jpeg.index(b"\xff\xc0")
    jpeg[place + 5 : place + 9] = b"\xff\xff\xff\xff"
    yield Upload("JPEG that claims 65,535 x 65,535", bytes(jpeg))
    webp = bytearray(save(noise(), "WEBP"))
    webp[26:30] = b"\xff\x3f\xff\x3f"
    yield Upload("WebP that claims 16,383 x 16,383", bytes(webp))


def bombs() -> Iterator[Upload]:
    """Megabytes of text in a few kilobytes of file."""
    row = b"\0" + bytes(6)
    for megabytes in (2, 64, 200):
        packed = zlib.compress(bytes(megabytes << 20), 6)
        for kind, data in {
            b"zTXt": b"Comment\0\0" + packed, b"iTXt": b"Comment\0\1\0\0\0" + packed, b"iCCP": b"icc\0\0" + packed,
        }.items():  # fmt: skip
            name = f"{megabytes} MB of text in {kind.decode()}"
            yield Upload(name, png(2, 2, chunk(kind, data), rows=row * 2), None)
    many = b"".join(chunk(b"zTXt", b"k%d\0\0" % i + zlib.compress(bytes(1 << 20), 9)) for i in range(100))
    yield Upload("a hundred texts of 1 MB", png(2, 2, many, rows=row * 2), None)
    yield Upload("pixels that unpack to 200 MB", png(2, 2, rows=bytes(200 << 20)), None)
    info = PngInfo()
    info.add_text("a", "b" * 10_000)
    yield Upload("an honest text", save(noise(), "PNG", pnginfo=info), True)


def numbers() -> Iterator[Upload]:
    """Arrays, which are no pictures, and floats that are no numbers."""
    for value in (np.nan, np.inf, -np.inf):
        file = io.BytesIO()
        np.save(file, np.full((32, 32, 3), value))
        yield Upload(f"npy full of {value}", file.getvalue())
        yield Upload(f"TIFF full of {value}", save(Image.fromarray(np.full((8, 8), value, np.float32)), "TIFF"))
        yield Upload(f"raw floats {value}", np.full((32, 32, 3), value, np.float32).tobytes())


def paths() -> Iterator[Upload]:
    for path in PATHS:
        yield Upload(f"the path {path[:30]!r}", path.encode())


def flipped() -> Iterator[Upload]:
    """Bytes turned over at random."""
    generator = random.Random(0)
    for kind in FORMATS:
        whole = save(noise(), kind)
        for turn in range(14):
            broken = bytearray(whole)
            for _ in range(1 + turn):
                broken[generator.randrange(len(broken))] = generator.randrange(256)
            yield Upload(f"{kind} with {1 + turn} bytes changed", bytes(broken), None)


def odd() -> Iterator[Upload]:
    """Strange, but pictures."""
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        picture = (
            Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50) if mode == "I;16" else noise(mode)
        )
        yield Upload(f"PNG of mode {mode}", save(picture, "PNG"), True)
    for mode in ("L", "RGB", "CMYK"):
        yield Upload(f"JPEG of mode {mode}", save(noise(mode), "JPEG"), True)
    for side in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = side
        yield Upload(f"JPEG with orientation {side}", save(noise(), "JPEG", exif=exif), True)
    exif = Image.Exif()
    exif[0x0112] = 77
    yield Upload("JPEG with an orientation that is none", save(noise(), "JPEG", exif=exif), True)
    frames = [noise().rotate(angle) for angle in range(0, 360, 10)]
    for kind in ("GIF", "WEBP", "PNG"):
        yield Upload(f"animated {kind}", save(frames[0], kind, save_all=True, append_images=frames[1:]), True)
    long = [Image.new("L", (1000, 1000), i % 256) for i in range(60)]
    yield Upload("GIF of 60 frames of a megapixel", save(long[0], "GIF", save_all=True, append_images=long[1:]), True)
    for size in ((1, 1), (1, 5000), (5000, 1), (4096, 4096)):
        yield Upload(f"PNG of {size[0]} x {size[1]}", save(Image.new("L", size, 99), "PNG"), True)
    yield Upload("transparent PNG", save(Image.new("RGBA", (20, 20), (255, 0, 0, 0)), "PNG"), True)
    yield Upload("progressive JPEG", save(noise(), "JPEG", progressive=True), True)
    yield Upload("JPEG with junk behind it", save(noise(), "JPEG") + bytes(1000), True)
    yield Upload("PNG with a zip behind it", save(noise(), "PNG") + b"PK\x03\x04" + bytes(100), True)
