"""What commands show: how far long work is, tables."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mspcaps.progress import LINE_EVERY


@contextlib.contextmanager
def counting() -> Iterator[Callable[[str, int, int | None], None]]:
    """(what, done, total) -> a bar with rate and time left on a terminal, elsewhere now and then a line on stderr."""
    if not sys.stdout.isatty():
        from mspcaps.data.folder import throttled

        yield throttled(partial(print, file=sys.stderr, flush=True), LINE_EVERY)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console = Console(highlight=False)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    speed = TextColumn("{task.fields[rate]}")
    with Progress(*columns, speed, TimeRemainingColumn(), console=console, transient=True) as bar:
        tasks: dict[str, tuple[TaskID, float]] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                for shown in tasks.values():  # one bar at a time: a folder of pictures would fill the screen with them
                    bar.remove_task(shown[0])
                tasks.clear()
                tasks[what] = bar.add_task(what, total=total, rate=""), time.monotonic()
            task, began = tasks[what]
            rate = f"{done / max(time.monotonic() - began, 1e-9):,.0f}/s" if done < (total or 0) else ""
            bar.update(task, completed=done, rate=rate)

        yield progress


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on stdout; the columns whose numbers are in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a file has no edge to wrap at
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
