"""How far a training run is: a bar with rate and time left on a terminal, now and then a plain line elsewhere.

Without torch, so that the command line, which shows other work in the same way, starts at once.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mspcaps.training.trainer import Listener, Trainer

LINE_EVERY, BAR_EVERY = 5.0, 0.25  # seconds; reading the loss makes a GPU wait, so it is not read more often
WINDOW = 30.0  # seconds over which the rate is taken


@dataclass(frozen=True)
class Reading:
    """Where a run stands."""

    epoch: int  # the current one: 1, 2, ...
    epochs: int
    steps: int  # taken, of all epochs
    of_steps: int
    rate: float  # images per second; 0 while too little has been seen
    left: float  # seconds, if there is a rate
    loss: float
    accuracy: float | None  # percent, after the last whole epoch

    def __str__(self) -> str:
        done = f"epoch {self.epoch}/{self.epochs}  {100 * self.steps / self.of_steps:3.0f} %"
        accuracy = [] if self.accuracy is None else [f"accuracy {self.accuracy:.2f} %"]
        return "  ".join([done, *self.pace(), f"loss {self.loss:.4f}", *accuracy])

    def pace(self) -> list[str]:
        """Rate and time left, once there is a rate."""
        return [per_second(self.rate), f"{clock(self.left)} left"] if self.rate else []


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
def training_progress() -> "Iterator[Listener]":
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
            accuracy = [] if now.accuracy is None else [f"{measured} {now.accuracy:.1f} %"]
            facts = " · ".join([*now.pace(), f"loss {now.loss:.3f}", *accuracy])
            bar.update(task, completed=now.steps, total=now.of_steps, epoch=f"{now.epoch}/{now.epochs}", facts=facts)

        yield listener


def per_second(rate: float) -> str:
    return f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"


def clock(seconds: float) -> str:
    """75 -> 1:15, 3675 -> 1:01:15"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
