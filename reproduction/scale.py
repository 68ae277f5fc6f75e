"""How training would scale to more GPUs than we had: an estimate from the measured step of one GPU, the bytes of the
gradient, and the link speeds that scale.toml assumes. Nothing here is a measurement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mspcaps.bench.timing import significant
from mspcaps.files import format_bytes, format_duration
from mspcaps.models import create_model, summarize
from mspcaps.training.distributed import BatchNorm
from reproduction import paper
from reproduction.study_tables import NONE, drop_empty

GPUS = (1, 8, 64)
FP32 = 4  # bytes of a number in the message
TENSORS = 5  # of the size of the weights, in fp32: weights, gradient twice, two moments of AdamW
IMAGENET_HEADS = ("model", "pixels", "parameters", "gradient", *(f"{n} GPU{'s' if n > 1 else ''}" for n in GPUS))
HEADS = ("model", "GPUs", "batch", "message", "ms per step", "images/s", "efficiency", "with synchronised BatchNorm")


def message_seconds(count: float, gpus: int, links: Mapping[str, Any]) -> float:
    """To average `count` bytes: each machine reduces them, every GPU averages its part with its peers in the other
    machines, and each machine gathers the parts. A ring of n sends 2 (n - 1) / n of the bytes over each link."""
    inside, machines = min(gpus, links["machine"]), math.ceil(gpus / links["machine"])
    seconds = 0.0
    for members, part, link in ((inside, count, links["inside"]), (machines, count / inside, links["between"])):
        if members > 1:
            speed = 1e9 * link["speed"] * links["used"]
            seconds += 2 * (members - 1) / members * part / speed + 1e-6 * link["latency"]
    return seconds


@dataclass(frozen=True)
class Estimate:
    """A step of `gpus` processes, each with the batch that one GPU was measured with. The message follows the backward
    pass: nothing overlaps."""

    model: str
    gpus: int
    batch: int
    step: float  # seconds, of one GPU
    message: float
    synchronised: float | None  # seconds of the whole step with synchronised BatchNorm, if one GPU was measured so

    @property
    def rate(self) -> float:
        return self.gpus * self.batch / (self.step + self.message)

    @property
    def efficiency(self) -> float:
        return self.step / (self.step + self.message)


def estimate(result: Mapping[str, Any], gpus: int, links: Mapping[str, Any]) -> Estimate:
    """From a measurement of `mspcaps bench train`."""
    ours, model = result["variants"]["ours"], result["model"]
    message, synchronised = message_seconds(FP32 * ours["params"], gpus, links), None
    if group := result.get("group"):
        norms = 2 * norm_layers(model)  # a message forward and one backward, so small that latency is all of it
        statistics = norms * message_seconds(0, gpus, links)
        synchronised = group["ms_per_step_synchronised"]["median"] / 1000 + message + statistics
    return Estimate(model, gpus, result["batch_size"], ours["ms_per_step"]["median"] / 1000, message, synchronised)


@cache
def norm_layers(model: str) -> int:
    return sum(isinstance(module, BatchNorm) for module in create_model(model).modules())


def scale_rows(results: Sequence[Mapping[str, Any]], links: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for result in results:
        for gpus in GPUS:
            one = estimate(result, gpus, links)
            together = gpus * one.batch / one.synchronised if one.synchronised else None
            rows.append((
                one.model, f"{gpus}", f"{gpus * one.batch:,}", f"{1e6 * one.message:.0f} µs",
                f"{1000 * (one.step + one.message):.2f}", f"{significant(one.rate):,.0f}",
                f"{100 * one.efficiency:.0f} %", f"{significant(together):,.0f} images/s" if together else NONE,
            ))  # fmt: skip
    return rows


def imagenet_rows(results: Sequence[Mapping[str, Any]], links: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """At the measured TFLOP/s, which larger images may not reach or may exceed."""
    measured, task = {result["model"]: result for result in results}, links["imagenet"]
    rows: list[tuple[str, ...]] = []
    for model, size in task["runs"]:
        if model not in measured:
            continue
        cost = summarize(model, num_classes=task["classes"], img_size=size)
        variant, batch = measured[model]["variants"]["ours"], measured[model]["batch_size"]
        step = batch * 6 * cost.macs / (1e12 * variant["tflops"])
        fits = TENSORS * FP32 * cost.params < 1e9 * links["memory"]
        times = []
        for gpus in GPUS:
            seconds = step + message_seconds(FP32 * cost.params, gpus, links)
            whole = task["epochs"] * task["images"] / (gpus * batch) * seconds
            times.append(format_duration(whole) if fits else "does not fit")
        rows.append((model, f"{size}", f"{cost.params:,}", format_bytes(FP32 * cost.params), *times))
    return rows


def scale_values(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For the template, from the measurements of one GPU."""
    links = paper.read_toml("scale.toml")
    return {
        "scale_device": results[0]["environment"]["device"] if results else None, "links": links,
        "scale_table": drop_empty(HEADS, scale_rows(results, links)),
        "imagenet_table": (IMAGENET_HEADS, imagenet_rows(results, links)),
        "groups": [(result["model"], result["group"]) for result in results if "group" in result],
    }  # fmt: skip
