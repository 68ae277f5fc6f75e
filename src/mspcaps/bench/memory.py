"""`mspcaps bench memory`: training at larger image sizes on a CPU, with freed memory kept by the process
(`training.device.keep_freed_memory`) and given back to the system; and how soon a run that cannot fit is refused.

The C library decides once per process what to do with freed memory, so every measurement runs in its own process,
alternating between the two. It counts processor time, which other programs disturb less than elapsed time.
"""

import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mspcaps.bench.result import CPU, Log, choose_batch, new_result
from mspcaps.bench.timing import significant
from mspcaps.bench.variants import CIFAR10, PAPER, EngineRun, Task
from mspcaps.errors import MspcapsError, silent
from mspcaps.training.device import free_bytes, keep_freed_memory
from mspcaps.training.memory import check_memory, training_need

SIZES, BATCH, STEPS, ROUNDS = (32, 96, 224), 8, 2, 3
TOO_LARGE = (("mspcaps_l", 224), ("mspcaps_t", 512))
CONVENTIONS = {
    "data": "synthetic: random uint8 images",
    "ms_per_image": "processor time of training steps, user and system, over the images; median of the processes",
    "system_ms_per_image": "what of it was spent in the kernel of the operating system",
    "peak_memory_bytes": "largest resident memory of the process, less that before the first step",
    "refused": "seconds of processor time from the question whether a run by the paper's recipe fits to the answer",
}


def bench_memory(
    model: str = "mspcaps_t", device: torch.device = CPU, batch_size: int | None = None, quick: bool = False,
    log: Log = silent,
) -> dict[str, Any]:  # fmt: skip
    """Measure steps at every size, and the refusals."""
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        raise MspcapsError("the memory benchmark needs Linux and a CPU: use --device cpu on a Linux machine")
    batch = choose_batch(batch_size, BATCH, training=True)
    result = new_result("memory", model, device, quick, CONVENTIONS, batch_size=batch, sizes=[])
    for side in (32, 48) if quick else SIZES:
        check_memory(replace(PAPER, model=model, batch_size=batch), device, 10, 3, (side, side), 0)
        given_back, kept = [], []
        for turn in range(1 if quick else ROUNDS):
            log(f"{side} pixels, turn {turn + 1}")
            steps = 1 if quick else STEPS
            given_back.append(in_new_process(model, side, batch, steps, False))
            kept.append(in_new_process(model, side, batch, steps, True))
        result["sizes"].append({"img_size": side, "given_back": medians(given_back), "kept": medians(kept)})
    training_need(PAPER, device, {"num_classes": 2, "in_chans": 3, "img_size": 32})  # loads more modules of PyTorch
    result["refused"] = [time_refusal(name, side, device) for name, side in TOO_LARGE]
    return result


def medians(costs: list[dict[str, float]]) -> dict[str, float]:
    return {key: significant(statistics.median(cost[key] for cost in costs)) for key in costs[0]}


def in_new_process(*args: Any) -> dict[str, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_steps, *args).result()


def measure_steps(model: str, side: int, batch: int, steps: int, kept: bool) -> dict[str, float]:
    """The cost of steps after a first one, which sets everything up; runs in its own process."""
    torch.set_num_threads(1)
    if kept:
        keep_freed_memory()
    task = Task(batch, side, images=2 * batch)
    run = EngineRun(task.model(model), task.data(), task, "eager")
    start = resident_bytes("VmRSS")
    run.run(1)
    before = processor_seconds()
    run.run(steps)
    user, system = (now - then for now, then in zip(processor_seconds(), before, strict=True))
    images = steps * batch
    return {
        "ms_per_image": 1000 * (user + system) / images,
        "system_ms_per_image": 1000 * system / images,
        "peak_memory_bytes": resident_bytes("VmHWM") - start,
    }


def processor_seconds() -> tuple[float, float]:
    """User and system time of this process so far."""
    import resource  # missing on Windows, where this file must still be importable

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def resident_bytes(name: str) -> int:
    """VmRSS: now; VmHWM: the peak. The peak that `resource` reports includes the parent process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def time_refusal(model: str, side: int, device: torch.device) -> dict[str, Any]:
    """Ask whether the paper's recipe fits with this model at this size -> the answer, and how long it took"""
    recipe, classes, chans = replace(PAPER, model=model), len(CIFAR10.classes), CIFAR10.channels
    began, sentence = time.process_time(), ""
    try:
        check_memory(recipe, device, classes, chans, (side, side), 0)
    except MspcapsError as error:
        sentence = str(error)
    seconds = time.process_time() - began
    need = training_need(recipe, device, {"num_classes": classes, "in_chans": chans, "img_size": side})
    return {
        "model": model, "img_size": side, "batch_size": recipe.batch_size, "seconds": significant(seconds),
        "needed_bytes": need.fixed + recipe.batch_size * need.per_image, "free_bytes": free_bytes(device),
        "answer": sentence,
    }  # fmt: skip
