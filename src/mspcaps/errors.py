"""The one exception that users are meant to read."""

import difflib
from collections.abc import Iterable


class MspcapsError(Exception):
    """Something the user can mend. The message is one clear sentence: the value, the reason and, if any, the remedy."""


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy where a name is not among those known: the nearest, if one is near."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise
