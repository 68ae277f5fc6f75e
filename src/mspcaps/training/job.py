"""One run of a sweep, wherever it is trained: in this process, in a worker of this machine, in a task of a cluster."""

import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol

import torch

from mspcaps.errors import MspcapsError
from mspcaps.models.registry import registered_models
from mspcaps.models.summary import summarize
from mspcaps.training.checkpoint import CHECKPOINT, read_checkpoint, run_folder
from mspcaps.training.images import MIN_SIDE
from mspcaps.training.ledger import Run, device_name, entry_path, find_run, read_run
from mspcaps.training.recipe import Recipe
from mspcaps.training.trainer import SAVE_EVERY, Listener, Trainer

TIME_TO_SAVE = 30.0  # seconds that runs have for their checkpoints once the sweep itself has failed
FILLS_A_GPU = 160e6  # multiply-adds per image at batch 128: four T share an H200; `bench train --packed` tells the gain


@dataclass(frozen=True)
class Outcome:
    """done: entered in the ledger now; known: was there before; stopped: checkpoint kept; left: not begun; failed;
    lost: with its worker, to be tried again."""

    recipe: Recipe
    state: str
    detail: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe.dataset}/{self.recipe.model}/{self.recipe.run_name}"


@dataclass(frozen=True)
class Job:
    """A run as it travels to whoever trains it."""

    recipe: Recipe
    out: Path
    results: Path
    deadline: float
    """By time.time(), which the machines of a cluster agree on."""
    module: str
    """Where the model is registered, for a process that does not know it yet."""
    together: int = 1
    """Runs that may share the device."""
    save_every: float = SAVE_EVERY


class WorkerLost(Exception):
    """A process that trained runs ended without a word; their checkpoints are kept."""


class Place(Protocol):
    """Where jobs are trained."""

    room: float
    """Of so many devices."""

    def submit(self, job: Job, share: float) -> "Future[Outcome]":
        """Train it on a share of a device; the future may raise WorkerLost."""

    def stop(self) -> None:
        """Runs save their checkpoints and end."""

    def close(self, at_once: bool) -> None:
        """No more jobs will come; `at_once`: those that go on have TIME_TO_SAVE."""


class Here:
    """This process: each run has its own thread and CUDA stream."""

    room = 1.0

    def __init__(self, device: torch.device, listener: Listener, stop: Event) -> None:
        self.device, self.listener, self.stopped = device, listener, stop
        self.pool = ThreadPoolExecutor(max_workers=4)

    def submit(self, job: Job, share: float) -> Future[Outcome]:
        return self.pool.submit(train_job, job, self.device, self.listener, self.stopped)

    def stop(self) -> None:
        self.stopped.set()

    def close(self, at_once: bool) -> None:
        self.pool.shutdown()  # a thread cannot be left behind


def share_of_device(recipe: Recipe, device: torch.device) -> float:
    """How much of the device a run takes: 1 if it fills it."""
    if device.type != "cuda":
        return 1.0
    macs = summarize(recipe.model, img_size=recipe.resolve().img_size or MIN_SIDE).macs
    return min(1.0, max(0.25, macs / FILLS_A_GPU))


def expected_seconds(recipe: Recipe, device: torch.device, out: Path, results: Path) -> float:
    """By what finished runs of the same model, data and adversary took on such a device, for the epochs that are still
    to do; nothing is known before the first."""
    took, adversary = [0.0], recipe.to_dict()["adversary"]
    for path in entry_path(results, recipe).parent.glob("*.json"):
        with suppress(MspcapsError):  # the report will name what cannot be read
            run = read_run(path)
            alike = run.device == device_name(device) and run.recipe["adversary"] == adversary
            took += [run.seconds.per_epoch] if alike else []
    epochs, checkpoint = recipe.epochs, run_folder(out, recipe) / CHECKPOINT
    if checkpoint.is_file():
        epochs -= read_checkpoint(checkpoint, whole=False)[0]["epoch"]
    return max(took) * epochs


_idle: dict[torch.device, list[torch.cuda.Stream]] = {}  # streams that no run has now


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream that no other run has meanwhile; few are ever made: see `recording_stream`."""
    if device.type != "cuda":
        yield
        return
    idle = _idle.setdefault(device, [])
    try:
        stream = idle.pop()  # not asked for before: another thread may be quicker
    except IndexError:
        stream = torch.cuda.Stream(device)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        idle.append(stream)


def train_job(job: Job, device: torch.device, listener: Listener, stop: Event) -> Outcome:
    """A run on a stream of its own. One that fails does not take the others with it."""
    recipe, out, results = job.recipe, job.out, job.results
    try:
        import_model(job)
        if run := find_run(results, recipe):  # a worker was lost between the entry and this word
            return Outcome(recipe, "done", describe(run))
        if time.time() + expected_seconds(recipe, device, out, results) > job.deadline:
            return Outcome(recipe, "left", "there was no time left for it")
        with own_stream(device):
            trainer = Trainer(
                recipe, device, out=out, results=results, save_every=job.save_every, listener=listener,
                side_by_side=job.together, stop=stop, log=lambda line: None,
            )  # fmt: skip
            result = trainer.run(time.monotonic() + job.deadline - time.time())
    except MspcapsError as error:
        return Outcome(recipe, "failed", str(error))
    except Exception as error:  # a bug, or the device: the others may still come through, and hours are at stake
        traceback.print_exc()
        return Outcome(recipe, "failed", f"{type(error).__name__}: {error}".partition("\n")[0])
    if result is None:
        return Outcome(recipe, "stopped", "its checkpoint is kept")
    return Outcome(recipe, "done", describe(result.run))


def import_model(job: Job) -> None:
    """In a process that has just begun: the module that registered the model, from the working directory too."""
    if job.recipe.model in registered_models():
        return
    if job.module == "__main__":
        raise MspcapsError(
            f"the model {job.recipe.model} is registered by a script, which other processes cannot import: register it "
            "in a module"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.import_module(job.module)


def describe(run: Run) -> str:
    return f"{run.accuracy}; in {run.seconds.train:.0f} s"
