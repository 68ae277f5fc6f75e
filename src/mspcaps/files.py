"""Files and folders: atomic writes, locks, checksums, names and sizes."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mspcaps.errors import MspcapsError, as_user_error, reason

ProgressFn = Callable[[str, int, int | None], None]  # what is being worked on, items done, total if known

UMASK = os.umask(0)  # reading it sets it for all threads, so it is read once, here
os.umask(UMASK)


def no_progress(what: str, done: int, total: int | None) -> None:
    """For callers that show no progress."""


def write_atomically(path: str | Path, write: Callable[[IO[bytes]], object] | bytes | str) -> None:
    """Write beside the target, flush to disk, rename: the old file stays intact until the new one is complete.

    `write` is the content, or a function that writes it into an open binary file.
    """
    path, temporary = Path(path), ""
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
    """Write JSON in the layout that results/ and the package use."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")


NUMBER = int | float
_WORDS = {
    str: "text",
    int: "a whole number",
    NUMBER: "a number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}


def read_form(path: Path, form: Any, what: str) -> Any:
    """The content of a JSON file, which must have the form of `what`, such as "a ledger entry"."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MspcapsError(f"{path} cannot be read as {what}: {error}") from error
    check_form(path, content, form, what)
    return content


def check_form(path: Path, value: Any, form: Any, what: str, name: str = "") -> None:
    """Refuse content that lacks something or has another type there. A form is a type, a table of forms, of which "*"
    is that of all values, or a list of the one form that all items have. More keys than in the form are fine."""
    kind = type(form) if isinstance(form, dict | list) else form
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise MspcapsError(f"{path} is not {what}: {name or 'its content'} is {value!r:.40}, not {_WORDS[kind]}")
    if isinstance(form, list):
        for number, item in enumerate(value):
            check_form(path, item, form[0], what, f"{name}[{number}]")
    elif isinstance(form, dict):
        for key, inner in form.items():
            if key != "*" and key not in value:
                raise MspcapsError(f"{path} is not {what}: {f'{name}.{key}'.lstrip('.')} is missing")
            for one in value if key == "*" else [key]:
                check_form(path, value[one], inner, what, f"{name}.{one}".lstrip("."))


def check_writable(folder: Path, refusal: str = "cannot write to") -> None:
    """Make the folder, and refuse now rather than after the work if it cannot be written to."""
    with as_user_error(f"{refusal} {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def check_readable(path: Path) -> None:
    """Refuse a file without read permission: some libraries report such a file as missing or damaged."""
    with as_user_error(f"cannot read {path}"):
        path.open("rb").close()


@contextlib.contextmanager
def lock_folder(folder: Path, refusal: str) -> Iterator[None]:
    """Lock the folder against other processes; the lock ends with this process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock
        yield
        return
    with as_user_error(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MspcapsError(refusal) from None
        except OSError:  # some network file systems have no locks
            pass
        for unfinished in folder.glob(".*.part"):  # left by a process that was killed while writing
            unfinished.unlink(missing_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: child processes have the handle too
        os.close(handle)


def to_utf8(name: str) -> str:
    """The name of a file as valid UTF-8, which file systems do not guarantee."""
    return os.fsencode(name).decode("utf-8", "replace")


def weights_name(weights: str | Path) -> str:
    """A name for weights: mspcaps_t.cifar10, or mspcaps_t-mine-seed0 for mspcaps_t/mine-seed0/last.safetensors."""
    path = Path(weights)
    if path.suffix != ".safetensors":
        return path.name
    if path.stem not in ("last", "best", "model"):
        return path.stem
    run = path.resolve().parent  # runs of several models may share its name
    name = f"{run.parent.name}-{run.name}" if re.search(r"-seed\d+$", run.name) else run.name
    return f"{name}-best" if path.stem == "best" else name


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def format_bytes(count: int) -> str:
    """12 B, 1.5 kB, 692 kB, 21.9 MB"""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """65 s, 22 min, 25 h"""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.0f} h"
