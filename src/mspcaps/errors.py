"""The one exception that users are meant to read."""


class MspcapsError(Exception):
    """Something the user can mend. The message is one clear sentence naming the value, the reason and, if there is one, the remedy."""
