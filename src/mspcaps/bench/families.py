"""`mspcaps bench families`: the cost of training and running every family, each next to one reference."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from mspcaps.bench.infer import Forward, random_images
from mspcaps.bench.result import CPU, Log, choose_batch, new_result
from mspcaps.bench.timing import Effort, TakeSteps, Timing, measure_peak, repeat, significant, time_interleaved
from mspcaps.bench.variants import CIFAR10, PAPER, EngineRun, Task
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError, first_line, silent
from mspcaps.models import check_name, list_models, summarize
from mspcaps.training.device import choose_engine

CONVENTIONS = {
    "data": "synthetic: random images of CIFAR-10's shape and count, for training augmented as CIFAR-10 is",
    "model": "each family with its default options and without a decoder, trained by the paper's recipe",
    "macs": "multiply-adds of one image's forward pass, matrix products and convolutions only",
    "ms_per_step": "median over blocks of steps that alternate with blocks of the reference",
    "images_per_second": "train: of the trainer's own step; infer: of the forward pass in evaluation mode",
    "relative": "images per second over those of the reference in the blocks between: above 1 it is faster",
    "peak_memory_bytes": "GPU only: allocated for tensors while training, less the images",
    "memory_bytes_per_image": "computed: activations kept for the backward pass in fp32",
}


def list_families() -> list[str]:
    """Registered models without variants, whose name begins with that of another model, such as mspcaps_t_dr."""
    names = list_models()
    return [name for name in names if not any(name.startswith(f"{other}_") for other in names)]


def bench_families(
    reference: str = "mspcaps_t", device: torch.device = CPU, batch_size: int | None = None, models: Sequence[str] = (),
    quick: bool = False, log: Log = silent, save: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure all families, or only `models`; one that does not compile or fit into memory is reported as failed.
    Compiling them all takes minutes, so `save` receives the result after every family."""
    on_gpu = device.type == "cuda"
    batch_size = choose_batch(batch_size, PAPER.batch_size if on_gpu else 16, training=True)
    for name in (reference, *models):
        check_name(name)
    if on_gpu:
        torch.backends.cudnn.benchmark = True  # as the trainer does
    result = new_result("families", "+".join(models) or "all", device, quick, CONVENTIONS)
    task = Task(batch_size, images=CIFAR10.train if on_gpu and not quick else 4 * batch_size)
    pair = Pair(reference, task, device, quick)
    result |= {"reference": reference, "batch_size": batch_size, "inference_batch_size": pair.inference_batch}
    result |= {"families": {}, "failed": {}}
    for name in dict.fromkeys((reference, *(models or list_families()))):
        log(f"measuring {name}")
        try:
            result["families"][name] = pair.measure(name)
        except (MspcapsError, RuntimeError) as error:  # out of memory, or refused by the compiler or a graph
            if name == reference:
                raise
            result["failed"][name] = first_line(error)
            log(f"left out: {result['failed'][name]}")
        save(result)
    return result


class Pair:
    """The reference, and one family after another next to it."""

    def __init__(self, reference: str, task: Task, device: torch.device, quick: bool) -> None:
        self.reference, self.task, self.device = reference, task, device
        on_gpu = device.type == "cuda" and not quick
        # On a CPU, compiling a dozen networks would take longer than measuring them.
        self.engine = choose_engine(None if on_gpu else "eager", device)
        self.form = "captured" if on_gpu else "channels_last"
        self.inference_batch = 1024 if on_gpu else task.batch_size
        self.effort = Effort.for_device(device, quick).shortened()
        self.data: ImageSet = task.data().to(device)
        self.step = self.train(reference)
        self.forward = self.infer(reference)

    def train(self, name: str) -> EngineRun:
        run = EngineRun(self.task.model(name), self.data, self.task, self.engine)
        run.run(2)  # the allocator needs a first step to warm up
        return run

    def infer(self, name: str) -> Forward:
        forward = Forward(self.task.model(name), self.form, self.device)
        forward.prepare(random_images(self.inference_batch))
        return forward

    def measure(self, name: str) -> dict[str, Any]:
        """The figures of one family."""
        cost = summarize(name, self.task.num_classes, CIFAR10.channels, self.task.img_size)
        gc.collect()  # models and optimizers refer to each other, and with the last family the GPU might be full
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        step, memory = measure_peak(partial(self.train, name), self.device)
        precision, step_times = step.precision, self.compare(self.step.run, step.run)
        del step
        forward_times = self.compare(repeat(self.forward), repeat(self.infer(name)))
        train: dict[str, Any] = {"form": self.engine, "precision": precision, "ms_per_step": step_times[1].to_dict()}
        train |= rates(step_times, self.task.batch_size) | ({} if memory is None else {"peak_memory_bytes": memory})
        return {
            "params": cost.params, "macs": cost.macs, "memory_bytes_per_image": cost.memory_bytes_per_image,
            "train": train, "infer": {"form": self.form, **rates(forward_times, self.inference_batch)},
        }  # fmt: skip

    def compare(self, reference: TakeSteps, other: TakeSteps) -> tuple[Timing, Timing]:
        timings = time_interleaved({"reference": reference, "other": other}, self.device, self.effort)
        return timings["reference"], timings["other"]


def rates(timings: tuple[Timing, Timing], batch: int) -> dict[str, float]:
    reference, other = (timing.median for timing in timings)
    return {"images_per_second": significant(1000 * batch / other), "relative": significant(reference / other)}
