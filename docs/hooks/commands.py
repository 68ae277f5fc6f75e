"""The reference of the command line: what `--help` says, asked when the site is built.

    ```help
    ```

becomes a section for every command.
"""

import contextlib
import io
import os
import re
import textwrap
from typing import Any

from mkdocs.exceptions import PluginError

from mspcaps.cli import COMMANDS, DATA, main

FENCE = re.compile(r"^```help\n```$", flags=re.MULTILINE)
WIDTH = "84"  # characters that a code block of the site holds in a window of 1280 pixels


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return FENCE.sub(lambda match: reference(), markdown) if FENCE.search(markdown) else markdown


def reference() -> str:
    commands = [command for command in COMMANDS if command != "data"]
    place = list(COMMANDS).index("data")
    commands[place:place] = [f"data {command}" for command in DATA]
    return "\n\n".join(f"## {command}\n\n```{{.text .help}}\n{help_of(command)}\n```" for command in commands)


def help_of(command: str) -> str:
    spoken = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(spoken):
            status = main([*command.split(), "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    text = re.sub(r"\x1b\[[0-9;]*m", "", spoken.getvalue()).strip()
    if status or f"usage: mspcaps {command}" not in text:
        raise PluginError(f"`mspcaps {command} --help` ended with {status}")
    return "\n".join(wrapped(line.rstrip()) for line in text.splitlines())


def wrapped(line: str) -> str:
    """What is said about a command comes as one line, and so does how it is called; tables of options are wrapped
    already."""
    if line.startswith(" "):
        return line
    whole = re.sub(r"\[[^][]*\]", lambda option: option[0].replace(" ", "\0"), line)  # an option is not broken
    indent = " " * 7 if line.startswith("usage") else ""
    return textwrap.fill(whole, int(WIDTH), subsequent_indent=indent, break_on_hyphens=False).replace("\0", " ")
