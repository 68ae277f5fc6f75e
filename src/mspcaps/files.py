"""Files: written so that a reader never sees half of one; folders held by one process; checksums, sizes in words,
generated blocks of text."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from mspcaps.errors import MspcapsError

ProgressFn = Callable[[str, int, int | None], None]  # what is being worked on, items done, items in all if known

UMASK = os.umask(0)  # can only be read by setting it, for all threads: so once
os.umask(UMASK)


def no_progress(what: str, done: int, total: int | None) -> None:
    """For callers that do not want to know."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], object] | bytes | str) -> None:
    """Write beside the target, flush to the disk, rename: the old file stays whole until the new one is.

    `write` is the content, or a function that writes it into an open binary file.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            if callable(write):
                write(file)
            else:
                file.write(write.encode() if isinstance(write, str) else write)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~UMASK)  # mkstemp makes private files
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise MspcapsError(f"cannot write {path}: {reason(error)}") from error
        raise


def write_json(path: Path, content: object) -> None:
    """As results/ and what comes with the package have it."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def check_writable(folder: Path, refusal: str = "cannot write to") -> None:
    """Makes the folder; refuses now what would be refused after the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MspcapsError(f"{refusal} {folder}: {reason(error)}") from error


def check_readable(path: Path) -> None:
    """Some libraries say of a file that may not be read that it is not there, or that it is damaged."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise MspcapsError(f"cannot read {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """In the system's words; that a folder could not be made where a file is means that the file is no folder."""
    return os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror or str(error)


@contextlib.contextmanager
def lock_folder(folder: Path, refusal: str) -> Iterator[None]:
    """No other process holds the folder meanwhile; it is free again when this one ends, however that happens."""
    try:
        import fcntl
    except ImportError:  # Windows, where nothing keeps two processes apart
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise MspcapsError(f"cannot write to {folder}: {reason(error)}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MspcapsError(refusal) from None
        except OSError:  # some network file systems have no locks
            pass
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # child processes have the handle, too
        os.close(handle)


def to_utf8(name: str) -> str:
    """The name of a file as UTF-8 text: the system allows names that are none."""
    return os.fsencode(name).decode("utf-8", "replace")


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def format_bytes(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def split_at_markers(text: str, begin: str, end: str, where: str) -> tuple[str, str]:
    """What stands before and after the two marks of a text; between them, marks included, a generated block goes."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise MspcapsError(
            f"{where} must hold {begin} and, after it, {end}, each once: what lies between them is replaced"
        )
    return text[: text.index(begin)], text[text.index(end) + len(end) :]
