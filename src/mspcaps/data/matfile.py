"""A reader of numeric arrays in MATLAB files of version 5 to 7, the format in which SVHN is published.

A file is a 128-byte header, then elements of (type, size, data padded to 8 bytes). An element of type 15 is a zlib
stream around another element; one of type 14 is an array with the sub-elements flags, dimensions, name and values, the
latter in column-major order.
"""

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from mspcaps.data.archives import MAX_BYTES
from mspcaps.errors import MspcapsError

_COMPRESSED, _MATRIX = 15, 14
# how values are stored, by element type, and what the array is, by array class
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def parse_mat(content: bytes, name: str) -> dict[str, np.ndarray]:
    """The real numeric arrays of a .mat file by name; other contents are ignored."""
    if content[:10] == b"MATLAB 7.3" or content[512:516] == b"\x89HDF":
        raise MspcapsError(f"{name} is a MATLAB file of version 7.3: save it with -v7 instead")
    endian = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if len(content) < 128 or endian is None:
        raise MspcapsError(f"{name} is not a MATLAB file of version 5 to 7")
    arrays = {}
    try:
        for kind, data in _elements(memoryview(content)[128:], endian):
            if kind == _COMPRESSED:
                kind, data = next(_elements(_inflate(data), endian))
            if kind == _MATRIX and (named := _array(data, endian)) is not None:
                arrays[named[0]] = named[1]
    except (struct.error, zlib.error, ValueError, StopIteration, UnicodeDecodeError) as error:
        raise MspcapsError(f"{name} is damaged: {error or 'it ends too early'}") from error
    return arrays


def parse_svhn(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X [32, 32, 3, N] and y [N, 1] with 10 for the digit 0 -> images [N, 3, 32, 32], labels uint8 [N]."""
    arrays = parse_mat(content, name)
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
        raise MspcapsError(f"{name} holds no SVHN digits: X must be uint8 [H, W, 3, N] and y [N, 1]")
    labels = y.reshape(-1)
    if not np.isin(labels, range(1, 11)).all():
        raise MspcapsError(f"{name}: labels run from {labels.min()} to {labels.max()}, but those of SVHN are 1 to 10")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8)


def _inflate(data: memoryview) -> memoryview:
    stream = zlib.decompressobj()
    content = stream.decompress(data, MAX_BYTES)
    if not stream.eof:
        raise ValueError("a compressed array is cut off or larger than any known data set")
    return memoryview(content)


def _elements(data: memoryview, endian: str) -> Iterator[tuple[int, memoryview]]:
    """(type, data) of each element. Up to 4 bytes are stored in the tag itself, with their size in its upper half."""
    place = 0
    while place < len(data):
        (word,) = struct.unpack_from(f"{endian}I", data, place)
        if word >> 16:
            kind, size, start, after = word & 0xFFFF, word >> 16, place + 4, place + 8
            if size > 4:
                raise ValueError(f"a small element claims {size} bytes")
        else:
            kind, size = struct.unpack_from(f"{endian}II", data, place)
            start = place + 8
            # compressed elements are the only ones that are not padded
            after = start + size if kind == _COMPRESSED else start + (size + 7) // 8 * 8
        if start + size > len(data):
            raise ValueError("an array is cut off")
        yield kind, data[start : start + size]
        place = after


def _array(data: memoryview, endian: str) -> tuple[str, np.ndarray] | None:
    """One array element -> (name, values), or None if it is not real and numeric."""
    parts = _elements(data, endian)
    (flags,) = struct.unpack_from(f"{endian}I", next(parts)[1])
    dtype, is_complex = _CLASSES.get(flags & 0xFF), flags & 0x0800
    dimensions = next(parts)[1]
    name = bytes(next(parts)[1]).decode("ascii")
    if dtype is None or is_complex:
        return None
    shape = struct.unpack(f"{endian}{len(dimensions) // 4}i", dimensions)
    kind, values = next(parts)
    if kind not in _STORED:
        raise ValueError(f"array {name} stores its values as type {kind}")
    stored = np.frombuffer(values, np.dtype(endian + _STORED[kind]))
    if min(shape) < 0 or stored.size != math.prod(shape):
        raise ValueError(f"array {name} declares shape {shape} but holds {stored.size} values")
    return name, stored.astype(dtype, copy=False).reshape(shape, order="F")
