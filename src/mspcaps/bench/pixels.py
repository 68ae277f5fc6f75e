"""`mspcaps bench pixels`: the cost of a training step per pixel as images grow, relative to the smallest size.

Every step has about the same number of pixels, so that only the image size differs.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mspcaps.bench.result import CPU, Log, choose_batch, new_result
from mspcaps.bench.timing import Effort, measure_peak, significant, time_interleaved
from mspcaps.bench.variants import PAPER, EngineRun, Task
from mspcaps.bench.votes import META, peak_bytes
from mspcaps.errors import MspcapsError, silent
from mspcaps.training.memory import check_memory

SIZES, BATCH = (64, 96, 224, 512), 2  # the batch is that of the largest size
CONVENTIONS = {
    "data": "synthetic: random uint8 images, augmented as CIFAR-10's are",
    "ns_per_pixel": "median time of a training step over the pixels in it; the blocks of all sizes are interleaved",
    "bytes_per_pixel": "the most that a pass forward and backward holds over the pixels in it: on a GPU as the "
    "allocator measures it, in the precision of training; elsewhere counted from the shapes, in fp32",
    "relative": "over the figure of the smallest size",
}


def bench_pixels(
    model: str = "lacaps_t", device: torch.device = CPU, batch_size: int | None = None, quick: bool = False,
    log: Log = silent,
) -> dict[str, Any]:  # fmt: skip
    """`batch_size` is that of the largest images; steps of smaller images have as many pixels."""
    batch = choose_batch(batch_size, BATCH, training=True)
    sizes = (32, 48) if quick else SIZES
    result = new_result("pixels", model, device, quick, CONVENTIONS, batch_size=batch, sizes=[], refused={})
    tasks = {side: Task(round(batch * (sizes[-1] / side) ** 2), side) for side in sizes}
    runs, memory = {}, {}
    for side, task in tasks.items():
        log(f"preparing {task.batch_size} images of {side} pixels")
        try:
            check_memory(replace(PAPER, model=model, batch_size=task.batch_size), device, 10, 3, (side, side), 0)
        except MspcapsError as error:
            result["refused"][str(side)] = str(error)
            continue
        task = replace(task, images=2 * task.batch_size)
        runs[side], peak = measure_peak(partial(EngineRun, task.model(model), task.data().to(device), task), device)
        memory[side] = count_bytes(model, task) if peak is None else peak
    log("timing them alternately")
    steps = {side: run.run for side, run in runs.items()}
    timings = time_interleaved(steps, device, Effort.for_device(device, quick).shortened())
    costs = [
        (side, 1e6 * timing.median / pixels(tasks[side]), memory[side] / pixels(tasks[side]))
        for side, timing in timings.items()
    ]
    result["sizes"] = [
        {
            "img_size": side, "batch_size": tasks[side].batch_size, "ns_per_pixel": significant(nanoseconds),
            "bytes_per_pixel": significant(size), "relative_time": round(nanoseconds / costs[0][1], 3),
            "relative_memory": round(size / costs[0][2], 3),
        }
        for side, nanoseconds, size in costs
    ]  # fmt: skip
    return result


def pixels(task: Task) -> int:
    return task.batch_size * task.img_size**2


def count_bytes(name: str, task: Task) -> int:
    with META:
        model = task.model(name).train()
        x = torch.rand(task.batch_size, model.in_chans, *model.img_size)
        y = torch.zeros(task.batch_size, dtype=torch.int64)
    return peak_bytes(lambda: model.training_loss(x, y, model.criterion))
