"""Progress of long work: a bar with rate and time left on a terminal or in a notebook, elsewhere a line now and then.

    with Progress("images") as progress:
        progress.update("reading", done, total)

Does not import torch, so that the command line starts at once.
"""

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from mspcaps.files import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

# Characters that a terminal obeys instead of showing: control characters, and those that change the text's direction.
_BIDIRECTIONAL = (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
ESCAPES = {number: ascii(chr(number))[1:-1] for number in (*range(32), *range(127, 160), *_BIDIRECTIONAL)}
LINE_EVERY, BAR_EVERY = 5.0, 0.25  # seconds between lines, and between updates of a bar
WINDOW = 30.0  # seconds over which the rate is measured


def printable(text: str) -> str:
    """One line that a terminal shows as it is: names of files and classes may contain commands to it."""
    return text.translate(ESCAPES)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines, each made printable."""
    print("\n".join(map(printable, text.split("\n"))), file=file, flush=True)


@dataclass
class Task:
    """One piece of work: its progress over the last WINDOW seconds, and when it was last shown."""

    marks: deque[tuple[float, float]] = field(default_factory=deque)  # time, done
    shown_at: float = -1.0
    bar: Any = None  # rich's number for it
    cell: tuple[str, str] = ("", "")  # its part of a notebook's display, as HTML and as text

    def rate(self, done: float) -> float:
        """Units per second; 0 on the first update."""
        now = time.monotonic()
        self.marks.append((now, done))
        while len(self.marks) > 2 and now - self.marks[1][0] >= WINDOW:
            self.marks.popleft()
        begin, before = self.marks[0]
        return (done - before) / max(now - begin, 1e-9)


class Progress:
    """One bar for everything: training, sweeps, downloads, evaluation. `unit` is what is counted: images, bytes.

    A new task replaces the previous one, unless tasks are `parallel`. Lines go to `file`, by default stderr; a task
    that finishes before its first line is due gets one only with `last_line`.
    """

    def __init__(
        self, unit: str = "", every: float = LINE_EVERY, file: TextIO | None = None, parallel: bool = False,
        last_line: bool = True,
    ) -> None:  # fmt: skip
        self.unit, self.every, self.file, self.parallel, self.last_line = unit, every, file, parallel, last_line
        self.tasks: dict[str, Task] = {}
        self.bars: RichProgress | None = None
        self.cell: Any = None  # the display in a notebook

    def __enter__(self) -> "Progress":
        if in_notebook():
            from IPython.display import display  # type: ignore[import-not-found]

            self.cell, self.every = display({"text/plain": ""}, raw=True, display_id=True), BAR_EVERY
        elif sys.stdout.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            label, facts = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[facts]}")
            columns = [label, BarColumn(bar_width=None), TaskProgressColumn(), facts]
            self.bars = Progress(*columns, console=Console(highlight=False), expand=True, transient=True)
            self.bars.start()
            self.every = BAR_EVERY
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def due(self, task: str) -> bool:
        """Whether an update would be shown now: if not, the caller may save the cost of preparing one."""
        return task not in self.tasks or time.monotonic() - self.tasks[task].shown_at >= self.every

    def update(self, task: str, done: float, total: float | None, detail: str = "", label: str = "") -> None:
        """`done` of `total`, in units. `detail` is shown at the end, `label` instead of the task's name."""
        detail, label = printable(detail), printable(label or task)
        new, finished = task not in self.tasks, total is not None and done >= total
        finished = finished and (self.last_line or self.bars is not None or self.cell is not None)
        if not (finished or self.due(task)):
            return
        if new and not self.parallel:
            self.clear()
        state = self.tasks.setdefault(task, Task())
        rate = state.rate(done)
        state.shown_at = time.monotonic()
        facts = [self.per_second(rate)] if rate else []
        if rate and total is not None:
            facts.append(f"{clock((total - done) / rate)} left")
        text = " · ".join([*facts, *filter(None, [detail])])
        if self.cell is not None:
            state.cell = progress_bar(label, done, total, text), f"{label}  {text}"
            html, lines = zip(*(state.cell for state in self.tasks.values()), strict=True)
            self.cell.update({"text/html": "".join(html), "text/plain": "\n".join(lines)}, raw=True)
        elif self.bars is not None:
            if state.bar is None:
                state.bar = self.bars.add_task("", total=total, facts="")
            self.bars.update(state.bar, completed=done, total=total, description=label, facts=text)
        elif not new or finished:
            percent = [f"{100 * done / total:3.0f} %"] if total else [f"{done:,.0f}"]
            line = "  ".join([label, *percent, *facts, *filter(None, [detail])])
            say(line, self.file or sys.stderr)

    def clear(self) -> None:
        """Remove all tasks."""
        for state in self.tasks.values():
            if self.bars is not None and state.bar is not None:
                self.bars.remove_task(state.bar)
        self.tasks.clear()

    def per_second(self, rate: float) -> str:
        if self.unit == "bytes":
            return f"{format_bytes(round(rate))}/s"
        number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{number} {self.unit}/s" if self.unit else f"{number}/s"


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel; those of Colab and VS Code are kinds of it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def clock(seconds: float) -> str:
    """75 -> 1:15, 3675 -> 1:01:15"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def progress_bar(label: str, done: float, total: float | None, facts: str) -> str:
    """As HTML."""
    extent = "" if total is None else f' value="{done:g}" max="{max(total, 1e-9):g}"'
    return f"<div>{escape(label)} <progress{extent}></progress> {escape(facts)}</div>"
