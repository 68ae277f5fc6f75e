"""The one exception meant for users, and helpers for its wording."""

import contextlib
import difflib
import errno
import os
import warnings
from collections.abc import Iterable, Iterator


class MspcapsError(Exception):
    """Something the user can fix. The message is one clear sentence: the value, the reason and the remedy, if any."""


def nearest(name: str, choices: Iterable[str], otherwise: str) -> str:
    """A hint for a name that is not among the choices: the nearest of them if one is close, else `otherwise`."""
    close = difflib.get_close_matches(name, [*choices], n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def warn(sentence: str) -> None:
    """Warn a user of the Python API; the command line prints such a sentence in its own way."""
    warnings.warn(sentence, stacklevel=3)


def silent(sentence: str) -> None:
    """In place of `warn` or a log, for callers that want no sentences."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error; the lines after it are advice."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def reason(error: BaseException) -> str:
    """Why it failed, in the words of the system or of the library; if a file stands where a folder is needed, that it
    is not a directory."""
    if isinstance(error, FileExistsError):
        return os.strerror(errno.ENOTDIR)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextlib.contextmanager
def as_user_error(refusal: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Turn these errors of the system or of a library into one sentence: the refusal, and why it failed."""
    try:
        yield
    except errors as error:
        raise MspcapsError(f"{refusal}: {reason(error)}") from error
