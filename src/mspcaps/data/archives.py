"""Unpacking untrusted archives: only plain files, only below the target folder, never more bytes than expected."""

import gzip
import lzma
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from mspcaps.errors import MspcapsError, as_user_error

MAX_BYTES = 1 << 30  # bytes; the largest raw set (SVHN) unpacks to 0.3 GiB
_BROKEN = (
    OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, UnicodeDecodeError, ValueError,
    RuntimeError,  # a zip that needs a password
)  # fmt: skip


def read_gzip(path: Path) -> bytes:
    """The content of a .gz file, or of a plain file as it is."""
    with as_user_error(f"cannot read {path}", _BROKEN):
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise MspcapsError(f"{path} unpacks to more than {MAX_BYTES} bytes, more than any known data set")
    return content


def unpack_tar(path: Path, folder: Path) -> None:
    """Unpack the plain files of a tar archive (also .gz, .xz) into the folder; anything unsafe is refused."""
    with as_user_error(f"cannot unpack {path}", _BROKEN), tarfile.open(path) as archive:
        _unpack(_tar_files(archive, path), path, folder)


def unpack_zip(path: Path, folder: Path) -> None:
    """Unpack the plain files of a zip archive, such as a wheel, by the same rules."""
    with as_user_error(f"cannot unpack {path}", _BROKEN), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _unpack(((file.filename, file.file_size, archive.open(file)) for file in members), path, folder)


def unpack_deb(path: Path, folder: Path) -> None:
    """Unpack the plain files of a Debian package, with dpkg-deb, which comes with apt-get."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise MspcapsError(f"cannot unpack {path}: the program dpkg-deb is not installed")
    command = [tool, "--fsys-tarfile", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            readable = as_user_error(f"cannot unpack {path}", _BROKEN)
            with readable, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                _unpack(_tar_files(archive, path), path, folder)
        finally:
            process.kill()


def _tar_files(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    for member in archive:
        if member.isdir():
            continue
        source = archive.extractfile(member) if member.isreg() else None
        if source is None:
            raise MspcapsError(f"cannot unpack {path}: {member.name!r} is not a plain file")
        yield member.name, member.size, source


def _unpack(files: Iterable[tuple[str, int, IO[bytes]]], path: Path, folder: Path) -> None:
    """Write files, given as (name, size, content), below the folder, or refuse them."""
    total = 0
    for name, size, source in files:
        parts, total = PurePosixPath(name), total + size
        if parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
            raise MspcapsError(f"cannot unpack {path}: it holds the unsafe path {name!r}")
        if total > MAX_BYTES:
            raise MspcapsError(f"cannot unpack {path}: it holds more than {MAX_BYTES} bytes")
        target = folder.joinpath(*parts.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
            if file.tell() != size:
                raise EOFError("it ends in the middle of a file")
