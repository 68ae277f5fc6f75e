"""Several concurrent runs on one GPU against a single one: in bare steps, and in a sweep, with evaluations."""

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from mspcaps.bench.result import Log
from mspcaps.bench.timing import Effort, TakeSteps, significant, time_interleaved
from mspcaps.bench.variants import AUGMENT, CIFAR10, PAPER, EngineRun, Task
from mspcaps.errors import MspcapsError, silent
from mspcaps.training.job import own_stream, share_of_device
from mspcaps.training.recipe import Recipe
from mspcaps.training.sweep import run_sweep
from mspcaps.training.trainer import Trainer

EPOCHS = 25  # of each run of the sweep
MAX_COMPILE_SECONDS = 600.0  # for all runs together


def run_together(runs: list[EngineRun], pool: ThreadPoolExecutor, steps: int) -> int:
    """Concurrent runs as in a sweep, each with its own thread and stream. A step is one step of every run."""

    def run_on_stream(run: EngineRun) -> int:
        with own_stream(run.device):
            taken = run.run(steps)
            if run.device.type == "cuda":
                torch.cuda.current_stream(run.device).synchronize()
        return taken

    return max(pool.map(run_on_stream, runs))


def measure_packed(
    model: str, task: Task, device: torch.device, effort: Effort, count: int, quick: bool, log: Log
) -> dict[str, Any]:
    """The throughput of `count` concurrent runs, relative to a single run."""
    log(f"timing {count} concurrent runs")
    data = task.data().to(device)
    runs = [EngineRun(task.model(model, seed), data, task, seed=seed) for seed in range(count)]
    with ThreadPoolExecutor(count) as pool:
        variants: dict[str, TakeSteps] = {"alone": runs[0].run, "together": partial(run_together, runs, pool)}
        times = time_interleaved(variants, device, effort)
    result = {
        "runs": count,
        "ms_per_step_alone": times["alone"].to_dict(),
        "ms_per_step_of_all": times["together"].to_dict(),
        "throughput_ratio": round(count * times["alone"].median / times["together"].median, 3),
    }
    if count * share_of_device(replace(PAPER, model=model, img_size=task.img_size), device) > 1 or quick:
        return result  # a sweep would run fewer at a time
    log(f"timing a sweep of {count} runs")
    return result | {"sweep": measure_sweep(model, task, device, count)}


def measure_sweep(model: str, task: Task, device: torch.device, count: int, epochs: int = EPOCHS) -> dict[str, Any]:
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

    outcomes = run_sweep(recipes, device, out=folder, results=folder / "results", log=silent, listener=note)
    if failed := [outcome for outcome in outcomes if outcome.state != "done"]:
        raise MspcapsError(f"a timed run did not finish: {failed[0].detail}")
    return rate_while_all_train(list(ends.values()))


def rate_while_all_train(ends: list[list[float]]) -> float:
    """Epochs per second of all runs, from the moments at which their epochs ended, until the first of them is done."""
    begin, end = min(moments[0] for moments in ends), min(moments[-1] for moments in ends)

    def epochs_by(moment: float) -> float:  # parts of epochs included: a slow run may not have ended one
        return sum(float(np.interp(moment, moments, range(len(moments)))) for moments in ends)

    return (epochs_by(end) - epochs_by(begin)) / (end - begin)
