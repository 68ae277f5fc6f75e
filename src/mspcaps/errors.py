"""The one exception that users are meant to read, and words for it."""

import difflib
from collections.abc import Iterable


class MspcapsError(Exception):
    """Something the user can mend. The message is one clear sentence: the value, the reason and, if any, the remedy."""


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy where a name is not among those known: the nearest, if one is near."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def first_line(error: BaseException) -> str:
    """Of what another library says: its errors begin with a sentence and go on with advice."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
