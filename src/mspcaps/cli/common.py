"""What the commands share: options that may be left out, the progress of long work, tables."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import tyro

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
