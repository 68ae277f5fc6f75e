"""Tiny writers of the raw formats, made from their specifications and independent of the readers under test."""

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mspcaps.data.catalog import Facts, Package, Variant, Web, facts


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mat(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A MATLAB 5 file, compressed; values of up to 4 bytes are written as small elements, as MATLAB does."""
    kinds = {"uint8": (2, 9), "int16": (3, 10), "float64": (9, 6)}

    def element(kind: int, data: bytes) -> bytes:
        if 0 < len(data) <= 4:
            return struct.pack("<I", len(data) << 16 | kind) + data.ljust(4, b"\0")
        return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    parts = [b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"]
    for name, array in arrays.items():
        stored, kind = kinds[array.dtype.name]
        body = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{array.ndim}i", *array.shape))
        body += element(1, name.encode()) + element(stored, array.tobytes(order="F"))
        packed = zlib.compress(struct.pack("<II", 14, len(body)) + body)
        parts.append(struct.pack("<II", 15, len(packed)) + packed)
    return b"".join(parts)


def tar(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def ar(members: Mapping[str, bytes]) -> bytes:
    content = b"!<arch>\n"
    for name, data in members.items():
        content += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return content


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with next to no content."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + end


def tiny_mnist() -> tuple[dict[str, np.ndarray], dict[str, bytes], Facts]:
    """Arrays, raw files and facts of an MNIST of 20 + 10 images of 28x28."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 1, 28, 28), np.uint8),
        "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (10, 1, 28, 28), np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }
    raw = {
        "train-images-idx3-ubyte": idx(arrays["x_train"][:, 0]),
        "train-labels-idx1-ubyte": idx(arrays["y_train"]),
        "t10k-images-idx3-ubyte": idx(arrays["x_test"][:, 0]),
        "t10k-labels-idx1-ubyte": idx(arrays["y_test"]),
    }
    sums = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    entry = replace(
        facts("mnist"),
        train=20,
        test=10,
        raw={name: "md5:" + hashlib.md5(content).hexdigest() for name, content in raw.items()},
        variants=(Variant("tiny", sums),),
        sources=(Package("npm", "tiny-mnist"),),
    )
    return arrays, raw, entry


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder


__all__ = ["Web", "ar", "idx", "mat", "png_header", "tar", "tiny_mnist", "write_files"]
