"""What long work shows: a bar with rate and time left on a terminal, now and then a plain line elsewhere."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mspcaps.errors import MspcapsError

if TYPE_CHECKING:
    from mspcaps.training import Trainer

LINE_EVERY, BAR_EVERY = 5.0, 0.25  # seconds; reading the loss makes a GPU wait, so it is not read more often
WINDOW = 30.0  # seconds over which the rate is taken


class Listener(Protocol):
    def __call__(self, trainer: "Trainer") -> None: ...


@dataclass(frozen=True)
class Reading:
    """Where a run stands."""

    epoch: int  # the current one: 1, 2, ...
    epochs: int
    steps: int  # taken, of all epochs
    of_steps: int
    rate: float  # images per second
    left: float  # seconds
    loss: float
    accuracy: float | None  # percent, after the last whole epoch

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f"  accuracy {self.accuracy:.2f} %"
        return (
            f"epoch {self.epoch}/{self.epochs}  {100 * self.steps / self.of_steps:3.0f} %  {per_second(self.rate)}  "
            f"{clock(self.left)} left  loss {self.loss:.4f}{accuracy}"
        )


class Meter:
    """Turns the state of a trainer into a reading; the rate is that of the last half minute of this sitting."""

    def __init__(self) -> None:
        self.marks: deque[tuple[float, int]] = deque()  # time, steps

    def read(self, trainer: "Trainer") -> Reading:
        steps = trainer.epoch * trainer.plan.steps + trainer.steps_done
        now = time.monotonic()
        self.marks.append((now, steps))
        while len(self.marks) > 2 and now - self.marks[1][0] >= WINDOW:
            self.marks.popleft()
        per_second = (steps - self.marks[0][1]) / max(now - self.marks[0][0], 1e-9)
        total = trainer.recipe.epochs * trainer.plan.steps
        between = trainer.steps_done == 0 and bool(trainer.history)
        loss = trainer.history[-1].loss if between else trainer.step.loss_sum.item() / max(trainer.steps_done, 1)
        return Reading(
            epoch=max(1, trainer.epoch + (not between)),
            epochs=trainer.recipe.epochs,
            steps=steps,
            of_steps=total,
            rate=per_second * trainer.plan.batch_size,
            left=(total - steps) / per_second if per_second else 0.0,
            loss=loss,
            accuracy=trainer.history[-1].accuracy if trainer.history else None,
        )


class Lines:
    """A plain line at most every few seconds, and one at the end; several runs at once have a meter each."""

    def __init__(self, every: float = LINE_EVERY, named: bool = False) -> None:
        self.every, self.named = every, named
        self.meters: dict[Path, tuple[Meter, float]] = {}

    def __call__(self, trainer: "Trainer") -> None:
        now = time.monotonic()
        if trainer.folder not in self.meters:
            self.meters[trainer.folder] = Meter(), now
            self.meters[trainer.folder][0].read(trainer)
            return
        meter, last = self.meters[trainer.folder]
        ended = trainer.epoch == trainer.recipe.epochs
        if ended or now - last >= self.every:
            self.meters[trainer.folder] = meter, now
            name = f"{trainer.recipe.dataset}/{trainer.recipe.model}/{trainer.recipe.run_name}  " if self.named else ""
            print(f"{name}{meter.read(trainer)}", flush=True)


@contextlib.contextmanager
def training_progress() -> Iterator[Listener]:
    """A listener for the trainer, fit for where stdout leads."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from mspcaps.training.recipe import measured_on

    console = Console(highlight=False)
    columns = [TextColumn("epoch {task.fields[epoch]}"), BarColumn(bar_width=None), TaskProgressColumn()]
    with Progress(*columns, TextColumn("{task.fields[facts]}"), console=console, expand=True) as bar:
        task, meter, shown = bar.add_task("", total=None, epoch="1", facts=""), Meter(), 0.0

        def listener(trainer: "Trainer") -> None:
            nonlocal shown
            if time.monotonic() - shown < BAR_EVERY and trainer.steps_done:
                return
            shown = time.monotonic()
            now = meter.read(trainer)
            measured = measured_on(trainer.recipe.held_out)
            accuracy = "" if now.accuracy is None else f" · {measured} {now.accuracy:.1f} %"
            facts = f"{per_second(now.rate)} · {clock(now.left)} left · loss {now.loss:.3f}{accuracy}"
            bar.update(task, completed=now.steps, total=now.of_steps, epoch=f"{now.epoch}/{now.epochs}", facts=facts)

        yield listener


@contextlib.contextmanager
def counting() -> Iterator[Callable[[str, int, int | None], None]]:
    """(what, done, total) -> a bar with rate and time left on a terminal, elsewhere now and then a line on stderr."""
    if not sys.stdout.isatty():
        from mspcaps.data.folder import now_and_then

        yield now_and_then(partial(print, file=sys.stderr, flush=True), LINE_EVERY)
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


class TensorBoard:
    """Writes loss, learning rate and test accuracy after every epoch, in a folder per run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MspcapsError("--log-dir needs TensorBoard: install mspcaps with its extra, mspcaps[log]") from error
        self.make, self.folder = SummaryWriter, folder
        self.writer: Any = None
        self.written = 0

    def __call__(self, trainer: "Trainer") -> None:
        if self.writer is None:
            from mspcaps.training.checkpoint import run_folder

            self.writer = self.make(str(run_folder(self.folder, trainer.recipe)))
        for row in trainer.history[self.written :]:
            for name, value in (("loss", row.loss), ("lr", row.lr), ("accuracy", row.accuracy)):
                self.writer.add_scalar(name, value, row.epoch)
            self.written += 1
        if trainer.epoch == trainer.recipe.epochs:
            self.writer.close()


def per_second(rate: float) -> str:
    return f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"


def clock(seconds: float) -> str:
    """75 -> 1:15, 3675 -> 1:01:15"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


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
