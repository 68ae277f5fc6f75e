"""Timing for fair comparisons: variants are warmed up, repeats interleaved, the device synchronised.

Variants run in turn, a block of each, again and again: if the machine slows down, all of them slow down alike, and the
median over the blocks ignores what hits a single block. This does not make up for a busy CPU, which slows a variant
according to how often its threads wait for each other.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType

T = TypeVar("T")
K = TypeVar("K")  # key of a variant
TakeSteps = Callable[[int], int]  # takes at least this many steps -> how many it took


def repeat(step: Callable[[], object]) -> TakeSteps:
    """Each call is a step."""

    def take(steps: int) -> int:
        for _ in range(steps):
            step()
        return steps

    return take


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


def timed(work: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """-> seconds, and what the work returned."""
    wait_for(device)
    began = time.perf_counter()
    result = work()
    wait_for(device)
    return time.perf_counter() - began, result


def time_interleaved(
    variants: Mapping[K, TakeSteps],
    device: torch.device,
    effort: Effort,
    settle: Callable[[K], object] = lambda name: None,
) -> dict[K, Timing]:
    """Warm up every variant, then time a block of each in turn, `effort.repeats` times. `settle` is called untimed
    before every block, to use up anything prefetched while other variants ran."""
    blocks: dict[K, int] = {}
    samples: dict[K, list[float]] = {name: [] for name in variants}
    for name, variant in variants.items():
        variant(effort.warmup)
        seconds, steps = timed(partial(variant, 1), device)
        blocks[name] = max(1, math.ceil(effort.seconds * steps / seconds))
    for _ in range(effort.repeats):
        for name, variant in variants.items():
            settle(name)
            seconds, steps = timed(partial(variant, blocks[name]), device)
            samples[name].append(1000 * seconds / steps)
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def significant(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def quantile(samples: list[float], share: float) -> float:
    """The smallest sample that at least this share of the samples do not exceed."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def kernels_per_step(variant: TakeSteps, device: torch.device) -> float | None:
    """Kernels per step, without copies and fills; None where there are none to count."""
    if device.type != "cuda":
        return None
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # keeps its start and stop messages off stderr
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        steps = variant(1)
        wait_for(device)
    names = [e.name for e in profiler.events() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
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
