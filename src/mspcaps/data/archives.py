"""Opening archives from elsewhere: only plain files, only below the target folder, never more bytes than expected."""

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from mspcaps.errors import MspcapsError, reason

MAX_BYTES = 1 << 30  # bytes; the largest raw set (SVHN) unpacks to 0.3 GiB
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, UnicodeDecodeError, ValueError)


def read_gzip(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a .gz file, or of a plain file as it is."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as file:
            content = file.read(limit + 1)
    except _BROKEN as error:
        raise MspcapsError(f"cannot read {path}: {reason(error)}") from error
    if len(content) > limit:
        raise MspcapsError(f"{path} unpacks to more than {limit} bytes, more than any known data set")
    return content


def unpack_tar(path: Path, folder: Path, limit: int = MAX_BYTES) -> None:
    """Unpack the plain files of a tar archive (also .gz, .xz) into the folder; anything that is not safe is refused."""
    try:
        with tarfile.open(path) as archive:
            _unpack(archive, path, folder, limit)
    except _BROKEN as error:
        raise MspcapsError(f"cannot unpack {path}: {reason(error)}") from error


def unpack_deb(path: Path, folder: Path, limit: int = MAX_BYTES) -> None:
    """Unpack the files of a Debian package: an ar archive whose member data.tar.* is a compressed tar."""
    try:
        for name, content in _ar_members(path):
            if name in ("data.tar.xz", "data.tar.gz", "data.tar"):
                with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                    _unpack(archive, path, folder, limit)
                return
            if name.startswith("data.tar"):
                # zstd came into Python's tarfile only with 3.14; Debian machines have dpkg-deb anyway
                _pipe_deb(path, folder, limit)
                return
    except _BROKEN as error:
        raise MspcapsError(f"cannot unpack {path}: {reason(error)}") from error
    raise MspcapsError(f"cannot unpack {path}: it holds no data.tar")


def _pipe_deb(path: Path, folder: Path, limit: int) -> None:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise MspcapsError(f"cannot unpack {path}: its compression needs the program dpkg-deb, which is not installed")
    with subprocess.Popen(
        [tool, "--fsys-tarfile", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                _unpack(archive, path, folder, limit)
        finally:
            process.kill()


def _unpack(archive: tarfile.TarFile, path: Path, folder: Path, limit: int) -> None:
    total = 0
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name:
            raise MspcapsError(f"cannot unpack {path}: it holds the unsafe path {member.name!r}")
        if member.isdir():
            continue
        if not member.isreg():
            raise MspcapsError(f"cannot unpack {path}: {member.name!r} is not a plain file")
        total += member.size
        if total > limit:
            raise MspcapsError(f"cannot unpack {path}: it holds more than {limit} bytes")
        target = folder.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None  # a plain file always has content
        _copy(source, target, member.size)


def _copy(source: IO[bytes], target: Path, size: int) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
        if file.tell() != size:
            raise EOFError("it ends in the middle of a file")


def _ar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each member: 60-byte text headers, content padded to even length."""
    with path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("it is not a Debian package")
        while header := file.read(60):
            if len(header) < 60 or header[58:] != b"`\n":
                raise EOFError("it is cut off")
            size = int(header[48:58])
            if not 0 <= size <= MAX_BYTES:
                raise ValueError(f"it claims a member of {size} bytes")
            content = file.read(size)
            if len(content) < size:
                raise EOFError("it is cut off")
            file.read(size % 2)
            yield header[:16].decode("ascii").rstrip(" ").rstrip("/"), content
