"""The one exception that users are meant to read."""


class MspcapsError(Exception):
    """Something the user can mend. The message is one clear sentence: the value, the reason and, if any, the remedy."""
