"""Kinds of bad input: a preparation, a command line, and what the answer must name.

Each starts in a folder with `pictures` (two classes of six grey pictures of 16 x 16), `model.safetensors`, weights for
them, and `one.png`. A kind is answered if the command refuses it in one sentence that names what is wrong, or goes on
and says so. What is done in Python instead of a command raises an error that names it.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAIN = "train --data pictures --model mspcaps_t_scale16 --epochs 1 --batch-size 4 --device cpu"
FINE = object()  # what a preparation returns if it turns out that nothing is wrong
Prepare = Callable[[], object]


def nothing() -> None:
    """What is wrong is the command line itself."""


@dataclass(frozen=True)
class Kind:
    name: str
    line: str  # of the command; empty: `prepare` is the whole of it
    names: str  # pattern of what the answer must name
    prepare: Prepare = nothing
    goes_on: bool = False  # it may go on, but has to say it

    def __str__(self) -> str:
        return self.name


def values(command: str, table: dict[str, str]) -> Iterable[Kind]:
    """Options with values that none may have: the answer names the option and the value."""
    for option, texts in table.items():
        for text in texts.split():
            named = re.escape(option.rpartition(".")[2]).replace(r"\-", "[-_]")
            pattern = re.escape(text) if "." in text else f"(?=.*{named}).*{re.escape(text)}"
            yield Kind(f"{command.split()[0]} --{option} {text}", f"{command} --{option}={text}", pattern)


def lines(table: dict[str, str]) -> Iterable[Kind]:
    """Command lines -> what the answer must name."""
    for line, names in table.items():
        yield Kind(line, line, names)


def prepared(group: str, line: str, table: dict[str, tuple[str, Prepare]], goes_on: bool = False) -> Iterable[Kind]:
    """One command line after different mischief: name -> (what the answer must name, the mischief)."""
    for name, (names, prepare) in table.items():
        yield Kind(f"{group}: {name}", line, names, prepare, goes_on)


def written(path: str, content: bytes | str) -> Prepare:
    """The preparation that writes a file."""

    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def calls(group: str, table: dict[str, tuple[str, Callable[[], Any]]]) -> Iterable[Kind]:
    """What is done in Python: name -> (what the error must name, the call)."""
    for name, (names, call) in table.items():
        yield Kind(f"{group}: {name}", "", names, call)
