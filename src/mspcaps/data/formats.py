"""Readers of the formats that image sets come in: IDX, CIFAR-10 batches and mosaics, SVHN's .mat, .npz, packed parts.

Every reader returns numpy arrays, images as uint8 [N, C, H, W] and labels as integers [N]. The `parse_` functions take
bytes whose published checksum was verified; all others refuse a damaged file with an MspcapsError. Nothing here ever
unpickles.
"""

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspcaps.data.archives import read_gzip
from mspcaps.data.pictures import read_pixels
from mspcaps.errors import MspcapsError, as_user_error
from mspcaps.files import check_readable

COLUMNS = 100  # images per row of a packed mosaic
MAX_CLASSES = 100_000
_MAT_COMPRESSED = 15  # type of a MATLAB element
_MAT_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
BROKEN = (  # what reading a damaged file of arrays raises
    OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error, MemoryError,
)  # fmt: skip


def array_sha256(array: np.ndarray) -> str:
    """sha256 of the contiguous bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def check_digest(content: bytes, expected: str, name: str) -> None:
    """Refuse content whose checksum is not the expected "md5:..." or "sha256:..."."""
    kind, _, digest = expected.partition(":")
    actual = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if actual != digest:
        raise MspcapsError(f"{name} has {kind} {actual} instead of {digest}: it is damaged or not the published file")


def parse_idx(content: bytes) -> np.ndarray:
    """IDX: two zero bytes, type 8 (uint8), number of axes, their lengths as big-endian uint32, then the values."""
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def parse_cifar_batch(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A CIFAR-10 binary batch, with a label before each image -> images [N, 3, 32, 32], labels uint8 [N]."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def parse_svhn(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A MATLAB 5 file with X [32, 32, 3, N] and y [N, 1], 10 for the digit 0 -> images [N, 3, 32, 32], labels [N].

    After a header of 128 bytes, each array is a zlib stream around one element.
    """
    arrays = {}
    for _, compressed in _mat_elements(memoryview(content)[128:]):
        ((_, array),) = _mat_elements(memoryview(zlib.decompress(compressed)))
        _flags, (_, shape), (_, name), (kind, values) = _mat_elements(array)
        flat = np.frombuffer(values, _MAT_TYPES[kind])
        arrays[bytes(name)] = flat.reshape(np.frombuffer(shape, "<i4"), order="F")
    return np.ascontiguousarray(arrays[b"X"].transpose(3, 2, 0, 1)), (arrays[b"y"][:, 0] % 10).astype(np.uint8)


def _mat_elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(type, data) of each element. Up to 4 bytes are stored in the tag itself, with their size in its upper half."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from("<II", data, place)
        start = place + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
        yield kind, data[start : start + size]
        place = start + size
        if kind != _MAT_COMPRESSED:  # all others are padded
            place += -place % 8


def cifar_batch_from_mosaic(path: Path, labels: np.ndarray) -> bytes:
    """A picture with one image per row, its pixels in reading order -> the official binary batch."""
    rows = read_pixels(path, 3)
    if rows.shape[1] != 32 * 32 or len(rows) != len(labels):
        raise MspcapsError(f"{path} is {rows.shape[1]}x{len(rows)} pixels instead of 1024x{len(labels)}")
    planes = rows.transpose(0, 2, 1).reshape(len(rows), -1)  # [N, 1024, 3] -> [N, 3 * 1024]
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_gzip(path))
    except (ValueError, RecursionError) as error:
        raise MspcapsError(f"{path} is not valid JSON: {error}") from error


def layout_of(shape: tuple[int, ...], name: str) -> str:
    """NHW, NHWC or NCHW: with four axes, the shorter of the second and the last holds the channels."""
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise MspcapsError(f"{name}: images need 3 or 4 axes (NHW, NHWC or NCHW), not shape {shape}")
    if shape[1] == shape[3] != 1:
        raise MspcapsError(
            f"{name}: shape {shape} could be NHWC or NCHW: store the images so that the channels are the shortest axis"
        )
    return "NCHW" if shape[1] <= shape[3] else "NHWC"


def to_nchw(images: np.ndarray, name: str) -> np.ndarray:
    """uint8 images in any of the three layouts -> [N, C, H, W]."""
    if images.dtype != np.uint8:
        raise MspcapsError(f"{name}: images must be uint8 (0 to 255), not {images.dtype}{_as_uint8(images)}")
    layout = layout_of(images.shape, name)
    if layout == "NHW":
        return images[:, None]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if layout == "NHWC" else images


def _as_uint8(images: np.ndarray) -> str:
    """How to convert values of another type to pixels, guessed from their range."""
    if images.dtype.kind not in "bfiu" or not images.size or images.min() < 0:
        return ""
    if not np.isfinite(images).all():
        return ", and some values are not finite"
    top = images.max()
    if images.dtype.kind in "bf" and top <= 1:
        return ": store (images * 255).astype('uint8')"
    return ": store (images // 256).astype('uint8')" if top > 255 else ": store images.astype('uint8')"


def check_labels(labels: np.ndarray, count: int, name: str) -> np.ndarray:
    """Integer labels [N] or [N, 1] -> int64 [N]."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu":
        raise MspcapsError(
            f"{name}: labels must be integers, not {labels.dtype}: classes, labels = np.unique(labels, "
            "return_inverse=True) converts them and gives the class names to store beside them"
        )
    if labels.shape != (count,):
        raise MspcapsError(f"{name}: {count} images need {count} integer labels, not {labels.dtype} {labels.shape}")
    if count and not (int(labels.min()) >= 0 and int(labels.max()) < MAX_CLASSES):
        raise MspcapsError(
            f"{name}: labels must lie between 0 and {MAX_CLASSES - 1}, not {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz, or the named ones; arrays of Python objects are refused: reading them could run code."""
    if not path.is_file():
        raise MspcapsError(f"{path} does not exist")
    check_readable(path)
    if not zipfile.is_zipfile(path):
        raise MspcapsError(f"{path} is not an .npz archive, or it is cut off")
    with as_user_error(f"cannot read {path} as .npz", BROKEN), np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in (archive.files if names is None else names)}
    if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise MspcapsError(f"cannot read {path} as .npz: {odd[0]} is not an array")
    return arrays


def npz_names(path: Path) -> set[str]:
    """The names of the arrays in an .npz; none if it is not one, which reading it will report."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {*archive.files}
    except (*BROKEN, AttributeError, TypeError):
        return set()


def has_manifest(folder: Path) -> bool:
    """Whether this is a folder of packed parts."""
    with as_user_error(f"cannot read {folder}"):
        return (folder / "manifest.json").is_file()


def read_packed(folder: Path) -> dict[str, np.ndarray]:
    """Packed parts: manifest.json, mosaics of 100 images per row, labels as .npy -> x_*, y_*, each sha256 verified."""
    manifest = read_json(folder / "manifest.json")
    arrays = {}
    try:
        for split, entry in manifest["splits"].items():
            shape = tuple(int(side) for side in entry["shape"])
            images = _read_mosaics(folder, entry["parts"], shape)
            labels = _read_npy(_inside(folder, f"{split}-labels.npy"))
            for name, array in ((f"x_{split}", images), (f"y_{split}", labels)):
                if array_sha256(array) != entry[f"{name[0]}_sha256"]:
                    raise MspcapsError(f"{folder}: {name} does not match the sha256 in manifest.json")
            arrays[f"x_{split}"] = to_nchw(images, f"{folder} x_{split}")
            arrays[f"y_{split}"] = check_labels(labels, len(images), f"{folder} y_{split}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MspcapsError(f"{folder / 'manifest.json'} is not a manifest of packed parts: {error!r}") from error
    return arrays


def _read_mosaics(folder: Path, parts: list[dict[str, Any]], shape: tuple[int, ...]) -> np.ndarray:
    """The tiles of all parts, [N, H, W] or [N, H, W, C] as in the manifest."""
    (n, h, w), c = shape[:3], (shape[3] if len(shape) == 4 else 1)
    if c not in (1, 3) or min(shape) < 1 or sum(part["images"] for part in parts) != n:
        raise MspcapsError(f"{folder / 'manifest.json'} declares shape {shape}, which its parts cannot hold")
    tiles = []
    for part in parts:
        path = _inside(folder, part["file"])
        canvas = read_pixels(path, c)
        rows = canvas.shape[0] // h
        if canvas.shape[:2] != (rows * h, COLUMNS * w) or not 0 < part["images"] <= rows * COLUMNS:
            raise MspcapsError(
                f"{path} is {canvas.shape[1]}x{canvas.shape[0]} pixels, too few for {part['images']} images"
            )
        grid = canvas.reshape(rows, h, COLUMNS, w, c).transpose(0, 2, 1, 3, 4)
        tiles.append(grid.reshape(-1, h, w, c)[: part["images"]])
    return np.concatenate(tiles).reshape(shape)


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name or not name:
        raise MspcapsError(f"{folder / 'manifest.json'} names the file {name!r}, which is not a plain file name")
    return folder / name


def _read_npy(path: Path) -> np.ndarray:
    with as_user_error(f"cannot read {path}", BROKEN):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise MspcapsError(f"{path} is not an .npy array")
    return array
