"""A moving average of the weights, which a run with `ema` evaluates and saves.

BatchNorm statistics are averaged, too: the right ones for the averaged weights change as slowly as those weights, so no
extra pass over the training images is needed.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mspcaps.models import Model
from mspcaps.training.optimizers import FlatOptimizer

M = TypeVar("M", bound=nn.Module)


def frozen_twin(model: M, tensors: Mapping[str, Tensor] | None = None) -> M:
    """A copy in eval mode whose parameters need no gradients: it computes with `tensors`, by name, and shares the
    model's memory for all others.

    A compiled backward pass computes every gradient that is required, used or not: that of the images alone takes about
    half the time.
    """
    tensors = tensors or {}
    memo: dict[int, Tensor] = {id(b): tensors.get(name, b) for name, b in model.named_buffers()}
    for name, p in model.named_parameters():
        memo[id(p)] = nn.Parameter(tensors.get(name, p).detach(), requires_grad=False)
    return copy.deepcopy(model, memo).eval()


def move_average(averages: list[Tensor], values: list[Tensor], steps: Tensor, decay: float) -> None:
    """One step towards the values. The decay begins at (1 + steps) / (10 + steps), to forget the start quickly."""
    weight = 1 - ((1 + steps) / (10 + steps)).clamp(max=decay)
    for average, value in zip(averages, values, strict=True):
        if average.is_floating_point():
            average.lerp_(value, weight.to(average.dtype))
        else:
            average.copy_(value)


class WeightAverage:
    """The moving averages of the fp32 master weights and of the buffers; `model` computes with them."""

    def __init__(self, model: Model, optimizer: FlatOptimizer, decay: float, compiled: Callable[[Any], Any]) -> None:
        self.optimizer, self.decay, self.move = optimizer, decay, compiled(move_average)
        buffers = {name: b for name, b in model.named_buffers() if name in model.state_dict()}
        self.values = [group.master for group in optimizer.groups] + [*buffers.values()]
        self.averages = [value.clone() for value in self.values]
        flat = self.averages[: len(optimizer.groups)]
        self.tensors = dict(zip(buffers, self.averages[len(flat) :], strict=True))  # by name, as views
        for group, average in zip(optimizer.groups, flat, strict=True):
            self.tensors |= group.pieces(average)
        self.model = frozen_twin(model, self.tensors)

    @torch.no_grad()
    def update(self) -> None:
        """Call after every step of the optimizer."""
        self.move(self.averages, self.values, self.optimizer.steps, self.decay)
