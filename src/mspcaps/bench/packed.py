"""Several concurrent runs on one GPU against a single one: in bare steps, and in a sweep, with evaluations."""

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from mspcaps.bench.result import Log
from mspcaps.bench.timing import Effort, Timed, significant, time_interleaved
from mspcaps.bench.variants import AUGMENT, CIFAR10, PAPER, EngineRun, Task
from mspcaps.errors import MspcapsError
from mspcaps.training.job import own_stream, share_of_device
from mspcaps.training.recipe import Recipe
from mspcaps.training.sweep import run_sweep
from mspcaps.training.trainer import Trainer

EPOCHS = 25  # of each run of the sweep
MAX_COMPILE_SECONDS = 600.0  # for all runs together


class PackedRuns(Timed):
    """Concurrent runs as in a sweep, each with its own thread and stream. A step is one step of every run."""

    def __init__(self, runs: list[EngineRun]) -> None:
        self.runs, self.pool = runs, ThreadPoolExecutor(len(runs))

    def run(self, steps: int) -> int:
        return max(self.pool.map(run_on_stream, self.runs, [steps] * len(self.runs)))

    def close(self) -> None:
        self.pool.shutdown()


def run_on_stream(run: EngineRun, steps: int) -> int:
    with own_stream(run.device):
        taken = run.run(steps)
        if run.device.type == "cuda":
            torch.cuda.current_stream(run.device).synchronize()
    return taken


def pack(
    model: str, task: Task, device: torch.device, effort: Effort, count: int, quick: bool, log: Log
) -> dict[str, Any]:
    """The throughput of `count` concurrent runs, relative to a single run."""
    log(f"timing {count} concurrent runs")
    data = task.data().to(device)
    runs = [EngineRun(task.model(model, seed), data, task, seed=seed) for seed in range(count)]
    together = PackedRuns(runs)
    times = time_interleaved({"alone": runs[0], "together": together}, device, effort)
    together.close()
    result = {
        "runs": count,
        "ms_per_step_alone": times["alone"].to_dict(),
        "ms_per_step_of_all": times["together"].to_dict(),
        "throughput_ratio": round(count * times["alone"].median / times["together"].median, 3),
    }
    if count * share_of_device(replace(PAPER, model=model, img_size=task.img_size), device) > 1 or quick:
        return result  # a sweep would run fewer at a time
    log(f"timing a sweep of {count} runs")
    return result | {"sweep": pack_sweep(model, task, device, count)}


def pack_sweep(model: str, task: Task, device: torch.device, count: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """The same with `run_sweep`, including evaluations."""
    with TemporaryDirectory() as folder:
        data = Path(folder, "synthetic.npz")
        train, test = task.data(), replace(task, images=min(task.images, CIFAR10.test)).data()
        np.savez(data, x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
        base = replace(PAPER, model=model, data=str(data), batch_size=task.batch_size, augment=AUGMENT, epochs=epochs)
        alone, together = (
            epochs_per_second([replace(base, seed=seed) for seed in range(size)], device, Path(folder, str(size)))
            for size in (1, count)
        )
    return {
        "epochs": epochs,
        "seconds_per_epoch_alone": significant(1 / alone),
        "seconds_per_epoch_of_all": significant(count / together),
        "throughput_ratio": round(together / alone, 3),
    }


def epochs_per_second(recipes: list[Recipe], device: torch.device, folder: Path) -> float:
    """The rate of all runs together while all of them train: after the first epoch they wait for each other."""
    ends: dict[int, list[float]] = defaultdict(list)
    start = threading.Barrier(len(recipes), timeout=MAX_COMPILE_SECONDS)

    def note(trainer: Trainer) -> None:
        if trainer.steps_done == 0:
            if trainer.epoch == 1:  # others may still be compiling
                start.wait()
            ends[trainer.recipe.seed].append(time.perf_counter())

    outcomes = run_sweep(recipes, device, out=folder, results=folder / "results", log=lambda line: None, listener=note)
    if failed := [outcome for outcome in outcomes if outcome.state != "done"]:
        raise MspcapsError(f"a timed run did not finish: {failed[0].detail}")
    begin, end = max(times[0] for times in ends.values()), min(times[-1] for times in ends.values())
    rate = 0.0
    for times in ends.values():
        shared = [moment for moment in times if begin <= moment <= end]
        rate += (len(shared) - 1) / (shared[-1] - shared[0])
    return rate
