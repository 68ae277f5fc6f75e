"""`mspcaps bench pixels`: what a training step costs per pixel as images grow, beside the smallest size in one run.

Every step has about the same number of pixels, so that only the size of the images differs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mspcaps.bench.result import check_batch, new_result
from mspcaps.bench.timing import Effort, measure_peak, significant, time_interleaved
from mspcaps.bench.variants import PAPER, EngineRun, Task
from mspcaps.bench.votes import META, peak_bytes
from mspcaps.errors import MspcapsError
from mspcaps.training.memory import check_memory

Log = Callable[[str], None]
SIZES, BATCH = (64, 96, 224, 512), 2  # of the largest images in a step
CONVENTIONS = {
    "data": "synthetic: random uint8 images, augmented as CIFAR-10's are",
    "ns_per_pixel": "median time of a training step over the pixels in it; the blocks of all sizes are interleaved",
    "bytes_per_pixel": "the most that a pass forward and backward holds over the pixels in it: on a GPU as the "
    "allocator measures it, in the precision of training; elsewhere counted from the shapes, in fp32",
    "relative": "over the figure of the smallest size",
}


def bench_pixels(
    model: str = "lacaps_t",
    device: torch.device | None = None,
    batch_size: int | None = None,
    quick: bool = False,
    log: Log = lambda line: None,
) -> dict[str, Any]:
    """Measure; `batch_size` is that of the largest images, and of smaller ones a step has as many pixels."""
    device, batch = device or torch.device("cpu"), BATCH if batch_size is None else batch_size
    check_batch(batch, training=True)
    sizes = (32, 48) if quick else SIZES
    result = new_result("pixels", model, device, quick, CONVENTIONS, batch_size=batch, sizes=[], refused={})
    tasks = {side: Task(round(batch * (sizes[-1] / side) ** 2), side) for side in sizes}
    runs, held = {}, {}
    for side, task in tasks.items():
        log(f"preparing {task.batch_size} images of {side} pixels")
        try:
            check_memory(replace(PAPER, model=model, batch_size=task.batch_size), device, 10, 3, (side, side), 0)
        except MspcapsError as error:
            result["refused"][str(side)] = str(error)
            continue
        task = replace(task, images=2 * task.batch_size)
        start = partial(EngineRun, task.model(model), task.data().to(device), task)
        runs[side], measured = measure_peak(start, device)
        held[side] = count_bytes(model, task) if measured is None else measured
    log("timing them alternately")
    timings = time_interleaved(runs, device, Effort.for_device(device, quick).shortened()) if runs else {}
    costs = [
        (side, 1e6 * timing.median / pixels(tasks[side]), held[side] / pixels(tasks[side]))
        for side, timing in timings.items()
    ]
    result["sizes"] = [
        {
            "img_size": side, "batch_size": tasks[side].batch_size, "ns_per_pixel": significant(time),
            "bytes_per_pixel": significant(memory), "relative_time": round(time / costs[0][1], 3),
            "relative_memory": round(memory / costs[0][2], 3),
        }
        for side, time, memory in costs
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
