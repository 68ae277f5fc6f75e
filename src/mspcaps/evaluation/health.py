"""Routing health: whether the capsules of each routing block share the couplings, and whether they matter.

    entropy   of the couplings along the axis of their softmax, mean over the rest: 1 is uniform, 0 is a single capsule
    top       mean coupling of the most used capsule, as a multiple of the uniform coupling
    starved   share of the capsules that never have the largest coupling
    swapped   points of accuracy lost when one input of the block comes from another image

A block has collapsed when its entropy is below 0.85 or its top above 2.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.capsules import RoutingState
from mspcaps.data.imageset import to_float
from mspcaps.models import Model
from mspcaps.models.layers import in_eval_mode

LEAST_ENTROPY = 0.85
MOST_TOP = 2.0
IMAGES = {"cpu": 500}  # images measured, by device: enough on a CPU, and a few percent of an epoch's time
IMAGES_ELSEWHERE = 2000
CHUNK = 250  # most images at a time: votes are kept in fp32 here, which takes more memory than the kernels do


@dataclass(frozen=True)
class BlockHealth:
    """One routing block; see above."""

    name: str  # path of the block inside the model
    capsules: int  # along the axis of the softmax
    entropy: float
    top: float
    starved: float
    swapped: dict[str, float]  # by the name of the input

    @property
    def collapsed(self) -> bool:
        return self.entropy < LEAST_ENTROPY or self.top > MOST_TOP

    def why(self) -> str:
        """Why it has collapsed, as the end of a sentence; empty if it has not."""
        reasons = []
        if self.entropy < LEAST_ENTROPY:
            reasons.append(f"the entropy of its couplings is {self.entropy:.2f} of uniform, below {LEAST_ENTROPY}")
        if self.top > MOST_TOP:
            reasons.append(
                f"one of its {self.capsules} capsules has {self.top:.1f} times the uniform coupling, above {MOST_TOP:g}"
            )
        return ", and ".join(reasons)


def relative_entropy(couplings: Tensor, axis: int) -> Tensor:
    """-> scalar: 1 if uniform along the axis, 0 if one capsule has it all; a single capsule counts as uniform."""
    n = couplings.shape[axis]
    entropy = -torch.xlogy(couplings, couplings).sum(axis).mean()  # 0 log 0 is 0
    return entropy / math.log(n) if n > 1 else torch.ones_like(entropy)


def mean_couplings(couplings: Tensor, axis: int) -> Tensor:
    """-> [n], one per capsule along the axis."""
    return couplings.movedim(axis, 0).flatten(1).mean(1)


def mark_winners(won: Tensor, couplings: Tensor, axis: int) -> None:
    """Set won [n] to one for every capsule that has the largest coupling somewhere."""
    won.index_fill_(0, couplings.argmax(axis).flatten(), 1.0)


@contextlib.contextmanager
def swapped(block: nn.Module, i: int) -> Iterator[list[bool]]:
    """Inside, the i-th input of a block comes from the previous image of the batch, that of the first image from the
    last. The list that it yields is empty until the block is called."""
    called: list[bool] = []

    def roll(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        called.append(True)
        return *args[:i], args[i].roll(1, 0), *args[i + 1 :]

    hook = block.register_forward_pre_hook(roll)
    try:
        yield called
    finally:
        hook.remove()


class Sums:
    """Sums for one block over the images so far; on the device and updated in place, as CUDA graphs require."""

    def __init__(self, state: RoutingState) -> None:
        n, device = state.couplings.shape[state.axis], state.couplings.device
        self.inputs = state.inputs
        self.entropy, self.mean, self.won = (torch.zeros(size, device=device) for size in ((), n, n))
        self.lost = torch.zeros(len(state.inputs), device=device)  # right answers lost, by input

    def zero(self) -> None:
        for tensor in (self.entropy, self.mean, self.won, self.lost):
            tensor.zero_()

    def read(self, name: str, images: int) -> BlockHealth:
        n = len(self.won)
        lost = (100 * self.lost / images).tolist()
        return BlockHealth(
            name=name,
            capsules=n,
            entropy=self.entropy.item() / images,
            top=n * self.mean.max().item() / images,
            starved=1 - self.won.mean().item(),
            swapped=dict(zip(self.inputs, lost, strict=True)),
        )


class HealthMeter:
    """Adds up the health of a model over batches. Only `read` waits for the device.

    The model must be in eval mode, without gradients.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.images, self.blocks = model, 0, dict[str, Sums]()

    def zero(self) -> None:
        self.images = 0
        for sums in self.blocks.values():
            sums.zero()

    def add(self, x: Tensor, labels: Tensor) -> None:
        """Images in [0, 1] and their labels."""
        states = self.model.routing_state(x)
        if not states:
            return
        features, weight = self.model.forward_features(x), len(x)
        right = count_right(self.model.forward_head(features), labels)
        for state in states:
            if state.name not in self.blocks:
                self.blocks[state.name] = Sums(state)
            sums, C = self.blocks[state.name], state.couplings
            C = C / C.sum(state.axis, keepdim=True).clamp_min(1e-30)  # a leaky routing leaves a share to none of them
            sums.entropy += weight * relative_entropy(C, state.axis)
            sums.mean += weight * mean_couplings(C, state.axis)
            mark_winners(sums.won, C, state.axis)
            for i in range(len(state.inputs)):
                with swapped(self.model.get_submodule(state.name), i) as rolled:
                    scores = self.model.forward_head(features)
                    if not rolled:  # the block is not in the head
                        scores = self.model(x)
                sums.lost[i] += right - count_right(scores, labels)
        self.images += weight

    def read(self) -> tuple[BlockHealth, ...]:
        return tuple(sums.read(name, self.images) for name, sums in self.blocks.items())


def count_right(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.argmax(1) == labels).sum()


def chosen(n: int, device: torch.device) -> Tensor:
    """Indices of the images to measure, out of n: always the same ones, and shuffled, since a folder lists one class
    after another and the previous image would be of the same class."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return order[: IMAGES.get(device.type, IMAGES_ELSEWHERE)]


def in_chunks(images: Tensor, labels: Tensor, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Chunks of about equal size, no single image among them: it would have no other to swap with."""
    count = math.ceil(len(images) / max(2, min(batch, CHUNK)))
    count = min(count, max(1, len(images) // 2))
    return list(zip(images.tensor_split(count), labels.tensor_split(count), strict=True))


@torch.no_grad()
def measure_health(model: Model, images: Tensor, labels: Tensor, batch_size: int = CHUNK) -> tuple[BlockHealth, ...]:
    """images [n, c, h, w], uint8 or floats in [0, 1], labels [n], on any device -> the health of each block."""
    first = next(model.parameters())
    index = chosen(len(images), first.device).to(images.device)
    meter = HealthMeter(model)
    with in_eval_mode(model):
        for x, y in in_chunks(images[index], labels[index.to(labels.device)], batch_size):
            meter.add(to_float(x.to(first.device)).to(first.dtype), y.to(first.device))
    return meter.read()


def as_curves(epochs: Sequence[Sequence[BlockHealth]]) -> dict[str, dict[str, Any]]:
    """What a ledger keeps: the values of every block in all epochs, to 4 digits; None in epochs without them."""
    rows = [{block.name: block for block in epoch} for epoch in epochs]
    latest: dict[str, BlockHealth] = {}
    for row in rows:
        latest |= row
    curves: dict[str, dict[str, Any]] = {}
    for name, last in latest.items():
        blocks = [row.get(name) for row in rows]
        curves[name] = {"capsules": last.capsules}
        for measure in ("entropy", "top", "starved"):
            curves[name][measure] = [block and short(getattr(block, measure)) for block in blocks]
        curves[name]["swapped"] = {
            key: [block and short(block.swapped[key]) for block in blocks] for key in last.swapped
        }
    return curves


def short(value: float) -> float:
    return float(f"{value:.4g}")
