"""Timing for fair comparisons: variants are warmed up, repeats interleaved, the device synchronised.

Variants run in turn, a block of each, again and again: if the machine slows down, all of them slow down alike, and the
median over the blocks ignores what hits a single block. This does not make up for a busy CPU, which slows a variant
according to how often its threads wait for each other.
"""

import math
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType


class Timed(ABC):
    """Something that takes steps."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to settle
        """Called untimed before every block: use up anything prefetched while other variants ran."""

    @abstractmethod
    def run(self, steps: int) -> int:
        """Take at least this many steps -> how many it took"""


class TimedCall(Timed):
    """Each call is a step."""

    @abstractmethod
    def __call__(self) -> object: ...

    def run(self, steps: int) -> int:
        for _ in range(steps):
            self()
        return steps


T = TypeVar("T")
K = TypeVar("K")  # key of a variant


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    repeats: int = 9  # blocks of each variant
    seconds: float = 0.5  # of one block
    warmup: int = 3  # steps of each before its first block

    @classmethod
    def for_device(cls, device: torch.device, quick: bool) -> "Effort":
        if quick:
            return cls(repeats=2, seconds=0.0, warmup=1)
        return cls() if device.type == "cuda" else cls(repeats=7, seconds=2.0)

    def shortened(self) -> "Effort":
        """For measurements at many points."""
        return replace(self, repeats=min(5, self.repeats), seconds=self.seconds / 4)


@dataclass(frozen=True)
class Timing:
    """Milliseconds per step of each block."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def to_dict(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 4),
            "lowest": round(min(self.samples), 4),
            "highest": round(max(self.samples), 4),
            "samples": [round(sample, 4) for sample in self.samples],
        }


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def timed(work: Callable[[], int], device: torch.device) -> tuple[float, int]:
    """-> seconds, and the number of steps that the work returned."""
    wait_for(device)
    began = time.perf_counter()
    steps = work()
    wait_for(device)
    return time.perf_counter() - began, steps


def time_interleaved(variants: Mapping[K, Timed], device: torch.device, effort: Effort) -> dict[K, Timing]:
    """Warm up every variant, then time a block of each in turn, `effort.repeats` times."""
    blocks: dict[K, int] = {}
    samples: dict[K, list[float]] = {name: [] for name in variants}
    for name, variant in variants.items():
        variant.run(effort.warmup)
        seconds, steps = timed(lambda: variant.run(1), device)  # noqa: B023 - called at once
        blocks[name] = max(1, math.ceil(effort.seconds * steps / seconds))
    for _ in range(effort.repeats):
        for name, variant in variants.items():
            variant.settle()
            seconds, steps = timed(lambda: variant.run(blocks[name]), device)  # noqa: B023 - called at once
            samples[name].append(1000 * seconds / steps)
    return {name: Timing(tuple(times)) for name, times in samples.items()}


class MatrixProduct(TimedCall):
    """The yardstick for arithmetic: n x n times n x n, in the precision of training."""

    def __init__(self, device: torch.device, dtype: torch.dtype, quick: bool) -> None:
        self.n = 256 if quick else 8192 if device.type == "cuda" else 2048
        generator = torch.Generator().manual_seed(0)
        # Random, not zeros: on zeros a GPU draws less power and runs faster than on real data.
        a, b = (torch.randn(self.n, self.n, generator=generator).to(device, dtype) for _ in range(2))
        self.a, self.b, self.out = a, b, torch.empty_like(a)

    def __call__(self) -> None:
        torch.mm(self.a, self.b, out=self.out)

    def to_dict(self, timing: Timing) -> dict[str, Any]:
        return {
            "n": self.n,
            "precision": str(self.a.dtype).removeprefix("torch."),
            "ms": timing.to_dict(),
            "tflops": significant(2 * self.n**3 / timing.median / 1e9),
        }


def significant(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def quantile(samples: list[float], share: float) -> float:
    """The smallest sample that at least this share of the samples do not exceed."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def kernels_per_step(variant: Timed, device: torch.device) -> float | None:
    """Kernels per step, without copies and fills; None where there are none to count."""
    if device.type != "cuda":
        return None
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # keeps its start and stop messages off stderr
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        steps = variant.run(1)
        wait_for(device)
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    names = [event.name for event in events if not event.is_user_annotation]
    kernels = sum(not name.startswith(("Memcpy", "Memset")) for name in names)
    return round(kernels / steps, 1) if kernels else None


def measure_peak(work: Callable[[], T], device: torch.device) -> tuple[T, int | None]:
    """-> the result of the work, and the peak memory that the GPU's allocator added during it; None on a CPU."""
    if device.type != "cuda":
        return work(), None
    wait_for(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = work()
    wait_for(device)
    return result, torch.cuda.max_memory_allocated(device) - before
