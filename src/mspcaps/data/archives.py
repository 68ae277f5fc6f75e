"""Opening archives from elsewhere: only plain files, only below the target folder, never more bytes than expected."""

import gzip
import lzma
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from mspcaps.errors import MspcapsError, reason

MAX_BYTES = 1 << 30  # bytes; the largest raw set (SVHN) unpacks to 0.3 GiB
_BROKEN = (
    OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, UnicodeDecodeError, ValueError,
)  # fmt: skip


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


def unpack_zip(path: Path, folder: Path, limit: int = MAX_BYTES) -> None:
    """Unpack the plain files of a zip archive, such as a wheel, by the same rules."""
    total = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                target = _target(member.filename, path, folder)
                total = _add_up(total, member.file_size, path, limit)
                with archive.open(member) as source:
                    _write(source, target, member.file_size)
    except (*_BROKEN, RuntimeError) as error:  # RuntimeError: it asks for a password
        raise MspcapsError(f"cannot unpack {path}: {reason(error)}") from error


def unpack_deb(path: Path, folder: Path, limit: int = MAX_BYTES) -> None:
    """Unpack the plain files of a Debian package, with the program that is wherever apt-get is."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise MspcapsError(f"cannot unpack {path}: the program dpkg-deb is not installed")
    command = [tool, "--fsys-tarfile", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                _unpack(archive, path, folder, limit)
        except _BROKEN as error:
            raise MspcapsError(f"cannot unpack {path}: {reason(error)}") from error
        finally:
            process.kill()


def _unpack(archive: tarfile.TarFile, path: Path, folder: Path, limit: int) -> None:
    total = 0
    for member in archive:
        target = _target(member.name, path, folder)
        if member.isdir():
            continue
        if not member.isreg():
            raise MspcapsError(f"cannot unpack {path}: {member.name!r} is not a plain file")
        total = _add_up(total, member.size, path, limit)
        source = archive.extractfile(member)
        assert source is not None  # a plain file always has content
        _write(source, target, member.size)


def _target(name: str, path: Path, folder: Path) -> Path:
    """Where a member of an archive goes: below the folder, or it is refused."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
        raise MspcapsError(f"cannot unpack {path}: it holds the unsafe path {name!r}")
    return folder.joinpath(*parts.parts)


def _add_up(total: int, size: int, path: Path, limit: int) -> int:
    if total + size > limit:
        raise MspcapsError(f"cannot unpack {path}: it holds more than {limit} bytes")
    return total + size


def _write(source: IO[bytes], target: Path, size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
        if file.tell() != size:
            raise EOFError("it ends in the middle of a file")
