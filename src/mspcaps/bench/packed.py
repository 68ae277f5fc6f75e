"""Several runs on one GPU against one alone: in bare steps, and as `mspcaps sweep` trains them, with evaluations."""

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

from mspcaps.bench.timing import Effort, Timed, significant, time_interleaved
from mspcaps.bench.variants import AUGMENT, CIFAR10, PAPER, EngineRun, Task
from mspcaps.errors import MspcapsError
from mspcaps.training.job import own_stream, share_of_device
from mspcaps.training.recipe import Recipe
from mspcaps.training.sweep import run_sweep
from mspcaps.training.trainer import Log, Trainer

EPOCHS = 25  # of the runs of a sweep
MAX_COMPILE_SECONDS = 600.0  # of all runs together


class PackedRuns(Timed):
    """Runs side by side as in a sweep: a thread and a stream each. A step is one step of every run."""

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
    """`count` runs side by side against one alone: how much more gets done in the same time."""
    log(f"timing {count} runs side by side")
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
        return result  # a sweep would not run so many at a time
    log(f"timing a sweep of {count} runs")
    return result | {"sweep": pack_sweep(model, task, device, count)}


def pack_sweep(model: str, task: Task, device: torch.device, count: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """The same by `run_sweep`, with evaluations."""
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
    """Of all runs together, while all of them train: after their first epoch they wait for each other."""
    ends: dict[int, list[float]] = defaultdict(list)
    start = threading.Barrier(len(recipes), timeout=MAX_COMPILE_SECONDS)

    def note(trainer: Trainer) -> None:
        if trainer.steps_done == 0:
            if trainer.epoch == 1:  # some are still being compiled
                start.wait()
            ends[trainer.recipe.seed].append(time.perf_counter())

    outcomes = run_sweep(recipes, device, out=folder, results=folder / "results", log=lambda line: None, listener=note)
    if failed := [outcome for outcome in outcomes if outcome.state != "done"]:
        raise MspcapsError(f"a run that was to be timed did not finish: {failed[0].detail}")
    begin, end = max(times[0] for times in ends.values()), min(times[-1] for times in ends.values())
    rate = 0.0
    for times in ends.values():
        shared = [moment for moment in times if begin <= moment <= end]
        rate += (len(shared) - 1) / (shared[-1] - shared[0])
    return rate
