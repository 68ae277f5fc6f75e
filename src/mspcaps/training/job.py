"""One run of a sweep, wherever it is trained: in this process, in a worker process, or in a task on a cluster."""

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
from mspcaps.training.checkpoint import CHECKPOINT, read_checkpoint
from mspcaps.training.images import MIN_SIDE
from mspcaps.training.ledger import Run, device_name, entry_path, find_run, read_run
from mspcaps.training.recipe import Recipe
from mspcaps.training.trainer import SAVE_EVERY, Listener, Trainer

TIME_TO_SAVE = 30.0  # seconds that runs have to save their checkpoints after the sweep itself has failed
FILLS_A_GPU = 160e6  # multiply-adds per image at batch 128: four T share an H200; `bench train --packed` shows the gain


@dataclass(frozen=True)
class Outcome:
    """state: done (now in the ledger), known (already there), stopped (its checkpoint is kept), left (not started),
    failed, or lost (with its worker, to be tried again)."""

    recipe: Recipe
    state: str
    detail: str = ""

    @property
    def name(self) -> str:
        return self.recipe.run_path.as_posix()


@dataclass(frozen=True)
class Job:
    """A run as it is sent to the process that trains it."""

    recipe: Recipe
    out: Path
    results: Path
    deadline: float
    """By time.time(), which is the same on all machines of a cluster."""
    module: str
    """The module that registers the model, for a process that has not imported it."""
    side_by_side: int = 1
    """How many runs may share the device."""
    save_every: float = SAVE_EVERY


class WorkerLost(Exception):
    """A process that trained runs ended unexpectedly; their checkpoints are kept."""


class Place(Protocol):
    """Where jobs are trained."""

    capacity: float
    """How many devices it has."""

    def submit(self, job: Job, share: float) -> "Future[Outcome]":
        """Train a job on a share of a device; the future may raise WorkerLost."""

    def stop(self) -> None:
        """Let the runs save their checkpoints and end."""

    def close(self, at_once: bool) -> None:
        """Wait for the jobs to end, as no more will come; with `at_once`, for no longer than TIME_TO_SAVE."""


class ThisProcess:
    """Jobs trained here: each has its own thread and CUDA stream."""

    capacity = 1.0

    def __init__(self, device: torch.device, listener: Listener, stop: Event) -> None:
        self.device, self.listener, self.stopped = device, listener, stop
        self.pool = ThreadPoolExecutor(max_workers=4)

    def submit(self, job: Job, share: float) -> Future[Outcome]:
        return self.pool.submit(train_job, job, self.device, self.listener, self.stopped)

    def stop(self) -> None:
        self.stopped.set()

    def close(self, at_once: bool) -> None:
        self.pool.shutdown()  # waits even with `at_once`: a thread cannot be abandoned


def share_of_device(recipe: Recipe, device: torch.device) -> float:
    """The fraction of the device that a run uses: 1 if it fills it, or if its model cannot be built, as it will say."""
    if device.type != "cuda":
        return 1.0
    try:
        macs = summarize(recipe.model, img_size=recipe.resolve().img_size or MIN_SIDE, **recipe.options).macs
    except MspcapsError:
        return 1.0
    return min(1.0, max(0.25, macs / FILLS_A_GPU))


def expected_seconds(recipe: Recipe, device: torch.device, out: Path, results: Path) -> float:
    """Estimated time for the epochs that remain, from finished runs of the same model, data and adversary on the same
    kind of device; 0 if there are none."""
    per_epoch, adversary = [0.0], recipe.to_dict()["adversary"]
    for path in entry_path(results, recipe).parent.glob("*.json"):
        with suppress(MspcapsError):  # the report will name an entry that cannot be read
            run = read_run(path)
            if run.device == device_name(device) and run.recipe["adversary"] == adversary:
                per_epoch.append(run.seconds.per_epoch)
    epochs, checkpoint = recipe.epochs, out / recipe.run_path / CHECKPOINT
    if checkpoint.is_file():
        epochs -= read_checkpoint(checkpoint, whole=False)[0]["epoch"]
    return max(per_epoch) * epochs


_idle: dict[torch.device, list[torch.cuda.Stream]] = {}  # streams that no run is using


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run on a stream that no other run is using. Streams are reused, so few are ever made: see `capture_stream`."""
    if device.type != "cuda":
        yield
        return
    idle = _idle.setdefault(device, [])
    try:
        stream = idle.pop()  # without checking first: another thread might take the last one in between
    except IndexError:
        stream = torch.cuda.Stream(device)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        idle.append(stream)


def train_job(job: Job, device: torch.device, listener: Listener, stop: Event) -> Outcome:
    """Train a run on a stream of its own. If it fails, the others go on."""
    recipe, out, results = job.recipe, job.out, job.results
    try:
        import_model(job)
        if run := find_run(results, recipe):  # a worker was lost after it had written the entry
            return Outcome(recipe, "done", describe(run))
        if time.time() + expected_seconds(recipe, device, out, results) > job.deadline:
            return Outcome(recipe, "left", "there was no time left for it")
        with own_stream(device):
            trainer = Trainer(
                recipe, device, out=out, results=results, save_every=job.save_every, listener=listener,
                side_by_side=job.side_by_side, stop=stop, log=lambda line: None,
            )  # fmt: skip
            result = trainer.run(time.monotonic() + job.deadline - time.time())
    except MspcapsError as error:
        return Outcome(recipe, "failed", str(error))
    except Exception as error:  # a bug, or the device: the other runs may still succeed, and hours are at stake
        traceback.print_exc()
        return Outcome(recipe, "failed", f"{type(error).__name__}: {error}".partition("\n")[0])
    if result is None:
        return Outcome(recipe, "stopped", "its checkpoint is kept")
    return Outcome(recipe, "done", describe(result.run))


def import_model(job: Job) -> None:
    """In a new process, import the module that registers the model; it may lie in the working directory."""
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
