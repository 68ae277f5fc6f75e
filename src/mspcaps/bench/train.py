"""`mspcaps bench train`: training steps of our engine, of the eager reference, and of a ResNet in our engine."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mspcaps.bench.packed import measure_packed
from mspcaps.bench.result import CPU, Log, choose_batch, new_result, yardstick
from mspcaps.bench.timing import (
    Effort,
    TakeSteps,
    Timing,
    kernels_per_step,
    measure_peak,
    repeat,
    significant,
    time_interleaved,
)
from mspcaps.bench.variants import AUGMENT, CIFAR10, PAPER, EagerReference, EngineRun, Task
from mspcaps.errors import MspcapsError, first_line, silent
from mspcaps.models import summarize
from mspcaps.training.device import Engine, choose_engine, working_precision
from mspcaps.training.distributed import group_of_one, synchronize_batchnorm

ENGINES: dict[str, tuple[Engine, ...]] = {"cpu": ("eager", "compile"), "cuda": ("eager", "compile", "cudagraph")}
EPOCHS = PAPER.epochs
Variant = EngineRun | EagerReference
CONVENTIONS = {
    "data": "synthetic: random uint8 images of CIFAR-10's shape and count, augmented as CIFAR-10 is",
    "ms_per_step": "median over blocks of steps; the blocks of all variants are interleaved",
    "seconds_300_epochs": f"derived: {EPOCHS} epochs of {CIFAR10.train:,} images at the median, without evaluation",
    "tflops": "3 x 2 x multiply-adds of one image's forward pass (matrix products, convolutions) x images per second",
    "share_of_matmul": "tflops over those of the matrix product timed among the variants",
    "peak_memory_bytes": "GPU only: allocated for tensors, less the images",
    "kernels_off": "our engine without hand-written kernels, as it runs where there is no Triton",
    "reference": "plain modules, fp32 (convolutions in TF32 where PyTorch's default has it so), torch.optim.AdamW, "
    "DataLoader with workers that crop and flip image by image",
    "group": "a process in a group of one, which averages its gradient with itself over NCCL (gloo on a CPU), relative "
    "to one alone; synchronised: BatchNorm statistics, too. It measures the cost of the messages without a network",
    "ratios": "images per second of ours over that of the other: above 1 ours is faster",
}


def bench_train(
    model: str = "mspcaps_t", device: torch.device = CPU, batch_size: int | None = None, scaling: bool = False,
    packed: int | None = None, quick: bool = False, log: Log = silent, group: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """`scaling` adds other image sizes, batch sizes and numbers of classes, `packed` this many concurrent runs, `group`
    the communication between processes, in a single process."""
    size = choose_batch(batch_size, PAPER.batch_size, training=True)
    if packed is not None and packed < 2:
        raise MspcapsError(f"packed is {packed}, but it takes at least 2 concurrent runs")
    if packed and device.type != "cuda":
        raise MspcapsError("packed works on a GPU only: on a CPU a single run uses all the cores")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # as the trainer does
    effort = Effort.for_device(device, quick)
    result = new_result("train", model, device, quick, CONVENTIONS, batch_size=size)
    task = Task(size, images=2 * size if quick else max(CIFAR10.train, size))
    result |= compare(model, yardstick(model), task, device, effort, quick, log)
    if scaling:
        result["scaling"] = measure_scaling(model, device, effort, scaling_tasks(task, quick), log)
    if packed:
        result["packed"] = measure_packed(model, task, device, effort, packed, quick, log)
    if group:
        result["group"] = compare_group(model, task, device, effort, log)
    return result


def compare(
    model: str, other: str, task: Task, device: torch.device, effort: Effort, quick: bool, log: Log
) -> dict[str, Any]:
    """Ours, the reference, the ResNet and a matrix product, interleaved."""
    runs: dict[str, Variant] = {}
    memory: dict[str, int | None] = {}
    for name, make in variant_makers(model, other, task, device, quick).items():
        log(f"preparing {name.replace('_', ', ')}")
        try:
            runs[name], memory[name] = measure_peak(partial(start, make), device)
        except torch._dynamo.exc.BackendCompilerFailed as error:  # without a C++ compiler, for example
            log(f"left out: {first_line(error.inner_exception)}")
    n, dtype = 256 if quick else 8192 if device.type == "cuda" else 2048, working_precision(device) or torch.float32
    steps = {name: run.run for name, run in runs.items()} | {"matmul": matrix_product(n, dtype, device)}

    def settle(name: str) -> None:
        if isinstance(variant := runs.get(name), EagerReference):
            variant.settle()

    log("timing them alternately")
    timings = time_interleaved(steps, device, effort, settle)
    matmul: dict[str, Any] = {
        "n": n, "precision": str(dtype).removeprefix("torch."), "ms": timings["matmul"].to_dict(),
        "tflops": significant(2 * n**3 / timings["matmul"].median / 1e9),
    }  # fmt: skip
    variants = {}
    for name, variant in runs.items():
        cost = describe(other if name == "resnet" else model, variant, task, timings[name], matmul["tflops"])
        device_facts = {"peak_memory_bytes": memory[name], "kernels_per_step": kernels_per_step(variant.run, device)}
        variants[name] = cost | {key: value for key, value in device_facts.items() if value is not None}
        if isinstance(variant, EagerReference):
            variant.close()
    rate = {name: variant["images_per_second"] for name, variant in variants.items()}
    compared = [name for name in ("reference", "resnet", "ours_kernels_off") if name in rate]
    ratios = {f"ours_vs_{name.removeprefix('ours_')}": round(rate["ours"] / rate[name], 3) for name in compared}
    return {"matmul": matmul, "variants": variants, "ratios": ratios}


def variant_makers(
    model: str, other: str, task: Task, device: torch.device, quick: bool
) -> dict[str, Callable[[], Variant]]:
    """What is compared, by name; each is made only when its turn comes, so that its memory can be measured."""
    data = task.data()
    on_device = data.to(device)
    images = 0 if quick else EPOCHS * CIFAR10.train  # as for the paper's recipe
    engine = choose_engine(None, device, images=images, model=task.model(model))

    def ours(engine: Engine = engine, **options: Any) -> Callable[[], Variant]:
        return lambda: EngineRun(task.model(model), on_device, task, engine, **options)

    makers: dict[str, Callable[[], Variant]] = {
        "ours": ours(),
        "reference": lambda: EagerReference(task.model(model), data, task.batch_size, AUGMENT, device),
        "resnet": lambda: EngineRun(task.model(other), on_device, task, engine),
    }
    engines = [] if quick else [name for name in ENGINES.get(device.type, ()) if name != engine]
    makers |= {f"ours_{name}": ours(name) for name in engines}
    if device.type == "cuda" and engine != "eager":  # elsewhere there are no kernels to switch off
        makers["ours_kernels_off"] = ours(fused=False)
    if device.type == "cpu":  # where bf16 has to be asked for
        makers["ours_bf16"] = ours(precision="bf16")
    return makers


def start(make: Callable[[], Variant]) -> Variant:
    variant = make()
    variant.run(2)  # the allocator needs a first step to warm up
    return variant


def matrix_product(n: int, dtype: torch.dtype, device: torch.device) -> TakeSteps:
    """The yardstick for arithmetic: n x n times n x n, in the precision of training."""
    generator = torch.Generator().manual_seed(0)
    # Random, not zeros: on zeros a GPU draws less power and runs faster than on real data.
    a, b = (torch.randn(n, n, generator=generator).to(device, dtype) for _ in range(2))
    return repeat(partial(torch.mm, a, b, out=torch.empty_like(a)))


def compare_group(model: str, task: Task, device: torch.device, effort: Effort, log: Log) -> dict[str, Any]:
    """A process without a group next to one in a group of one, which sends every message to itself; interleaved."""
    log("preparing a process in a group of one")
    data = task.data().to(device)
    with group_of_one(device) as world:
        synchronised = task.model(model).to(device)
        synchronize_batchnorm(synchronised, world)
        runs = {
            "alone": EngineRun(task.model(model), data, task),
            "grouped": EngineRun(task.model(model), data, task, world=world),
            "synchronised": EngineRun(synchronised, data, task, world=world),
        }
        log("timing it alternately with one alone")
        times = time_interleaved({name: run.run for name, run in runs.items()}, device, effort)
        for run in runs.values():
            run.step.release()
    return {
        "engine": runs["alone"].engine,
        "message_bytes": 4 * sum(p.numel() for p in synchronised.parameters()),
        **{f"ms_per_step_{name}": timing.to_dict() for name, timing in times.items()},
        "relative_grouped": round(times["grouped"].median / times["alone"].median, 4),
        "relative_synchronised": round(times["synchronised"].median / times["alone"].median, 4),
    }


def describe(model: str, variant: Variant, task: Task, timing: Timing, ceiling: float) -> dict[str, Any]:
    """The figures of one variant."""
    cost = summarize(model, task.num_classes, CIFAR10.channels, task.img_size)
    rate = 1000 * task.batch_size / timing.median
    tflops = 3 * 2 * cost.macs * rate / 1e12  # the backward pass multiplies twice as much as the forward pass
    return {
        "model": model,
        "params": cost.params,
        "form": variant.engine,
        "precision": variant.precision,
        "ms_per_step": timing.to_dict(),
        "images_per_second": significant(rate),
        "seconds_300_epochs": significant(EPOCHS * (CIFAR10.train // task.batch_size) * timing.median / 1000),
        "tflops": significant(tflops),
        "share_of_matmul": significant(tflops / ceiling),
    }


def scaling_tasks(task: Task, quick: bool) -> dict[str, list[Task]]:
    """Axis -> the tasks along it, smallest first."""
    small = replace(task, images=2 * task.batch_size if quick else 16 * task.batch_size)
    if quick:
        sizes, batches, classes = [32, 48], [task.batch_size, 2 * task.batch_size], [10, 20]
    else:
        sizes, batches, classes = [32, 64, 96], [32, 128, 512], [10, 100]
    return {
        "img_size": [replace(small, img_size=size) for size in sizes],
        "batch_size": [replace(small, batch_size=b, images=small.images // task.batch_size * b) for b in batches],
        "classes": [replace(small, num_classes=count) for count in classes],
    }


def measure_scaling(
    model: str, device: torch.device, effort: Effort, along: dict[str, list[Task]], log: Log
) -> dict[str, list[dict[str, Any]]]:
    """The cost of our engine along each axis, all points interleaved."""
    runs: dict[Task, EngineRun] = {}
    for task in [task for tasks in along.values() for task in tasks]:
        if task not in runs:  # the axes share one point
            log(f"preparing {task.img_size} pixels, batch {task.batch_size}, {task.num_classes} classes")
            runs[task] = EngineRun(task.model(model), task.data().to(device), task)
    log("timing them alternately")
    timings = time_interleaved({task: run.run for task, run in runs.items()}, device, effort.shortened())

    def row(task: Task) -> dict[str, Any]:
        return {
            "img_size": task.img_size, "batch_size": task.batch_size, "classes": task.num_classes,
            "ms_per_step": timings[task].to_dict(),
            "images_per_second": significant(1000 * task.batch_size / timings[task].median),
        }  # fmt: skip

    return {axis: [row(task) for task in tasks] for axis, tasks in along.items()}
