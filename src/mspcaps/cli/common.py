"""What the commands share: options that may be left out, progress, Ctrl-C, tables, results picture by picture."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeVar

import tyro

from mspcaps.errors import MspcapsError
from mspcaps.progress import Progress

T = TypeVar("T")
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # left out of the help: its "(default: None)"


def show_progress(unit: str = "") -> Progress:
    """A bar on a terminal; elsewhere a line on stderr every few seconds, and none about work that takes less."""
    return Progress(unit, last_line=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on stdout; the columns whose numbers are in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a file has no edge to wrap at
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(head):
        grid.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


def is_onnx(weights: str, device: str | None) -> bool:
    """Whether it is an exported file; that runs on the CPU only."""
    exported = weights.lower().endswith(".onnx")
    if exported and device not in (None, "cpu"):
        raise MspcapsError(f"{weights} runs on the CPU, with onnxruntime: leave out --device {device}")
    return exported


def print_results(results: Iterable[tuple[str, str | None]]) -> int:
    """A line per picture, or an error on stderr, as they come; the exit status says whether any failed."""
    status = 0
    for line, error in results:
        print(line if error is None else f"error: {error}", file=sys.stdout if error is None else sys.stderr)
        status = status if error is None else 1
    return status


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """What Ctrl-C sets, so that runs can end in order; a second Ctrl-C ends everything at once.

    KeyboardInterrupt alone would not do: it gets lost when it is raised while torch.compile looks for code that fits,
    and a thread that is just being started is left behind.
    """
    from mspcaps.training import Stopped

    stop = threading.Event()

    def interrupted(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    except Stopped as stopped:
        print(stopped, end="\n" if str(stopped) else "", file=sys.stderr)
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)
