"""Several processes, one meaning: n processes with a batch of b compute what one process with the same batch computes.

Started by torchrun. Every process takes its share of each batch, BatchNorm sees the statistics of the whole batch, and
the flat gradient is averaged in one message. gloo on CPU, NCCL on GPUs.
"""

import atexit
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mspcaps.models.layers import BatchNorm


@dataclass(frozen=True)
class World:
    """This process among all of them."""

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"

    @property
    def is_main(self) -> bool:
        """One process writes files and talks to the user."""
        return self.rank == 0

    def average(self, tensors: list[Tensor]) -> None:
        """In place, over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def any(self, flags: list[bool]) -> list[bool]:
        """For each flag, whether some process has it set: what all of them do next, all must decide alike."""
        if self.size == 1:
            return flags
        found = torch.tensor(flags, dtype=torch.float32, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [bool(flag) for flag in found.tolist()]

    def all_equal(self, *numbers: int) -> bool:
        """Whether all processes have the same numbers."""
        if self.size == 1:
            return True
        found = torch.tensor([*numbers, *(-number for number in numbers)], dtype=torch.int64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)  # of all, and of all negated: the largest and the smallest
        return bool((found[: len(numbers)] == -found[len(numbers) :]).all())

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def join_world(device: torch.device) -> World:
    """Joins the processes that torchrun started; alone if it did not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(leave_world)  # not after a run: a process may train several
    return World(dist.get_rank(), size, device)


def leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class AllReduceSum(torch.autograd.Function):
    """The sum over all processes; every one of them uses it, so the gradients add up as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


class SyncBatchNorm(BatchNorm):
    """BatchNorm2d over the batches of all processes; unlike PyTorch's own it also runs on CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x32 = x.float()
        count = dist.get_world_size() * x.numel() / x.shape[1]
        mean = AllReduceSum.apply(x32.sum((0, 2, 3))) / count
        centred = x32 - mean.view(1, -1, 1, 1)
        var = AllReduceSum.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            momentum = self.momentum or 0.0
            self.running_mean.lerp_(mean, momentum)  # type: ignore[union-attr]
            self.running_var.lerp_(var * count / (count - 1), momentum)  # type: ignore[union-attr]
        y = centred * ((var + self.eps).rsqrt() * self.weight).view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return y.to(x.dtype)


def synchronize_batchnorm(model: nn.Module) -> None:
    """Every BatchNorm of the model becomes one over all processes, parameters and buffers kept."""
    for module in model.modules():
        if type(module) is BatchNorm:
            module.__class__ = SyncBatchNorm
