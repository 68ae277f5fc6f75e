"""The one exception that users are meant to read, and help with its wording."""

import difflib
from collections.abc import Iterable


class MspcapsError(Exception):
    """Something the user can fix. The message is one clear sentence: the value, the reason and, if any, the remedy."""


def nearest(name: str, choices: Iterable[str], otherwise: str) -> str:
    """A hint for a name that is not among the choices: the nearest of them if one is close, else `otherwise`."""
    close = difflib.get_close_matches(name, [*choices], n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def first_line(error: BaseException) -> str:
    """The first line of another library's error, which begins with a sentence and goes on with advice."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
