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
from torch.nn import functional as F

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


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


class SyncBatchNorm(nn.Module):
    """A BatchNorm over the batches of all processes, with the parameters and statistics of the one it stands for;
    unlike PyTorch's own it also runs on CPU."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum, self.training = norm.eps, norm.momentum, norm.training
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(norm, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        self.batches = 0  # for a cumulative average, which momentum None asks for

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            statistics = self.running_mean, self.running_var
            return F.batch_norm(x, *statistics, self.weight, self.bias, False, 0.0, self.eps)
        x32, dims, shape = x.float(), [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        count = dist.get_world_size() * x.numel() / x.shape[1]
        mean = AllReduceSum.apply(x32.sum(dims)) / count
        centred = x32 - mean.view(shape)
        var = AllReduceSum.apply(centred.square().sum(dims)) / count
        self.track(mean.detach(), var.detach() * count / (count - 1))
        scale = (var + self.eps).rsqrt()
        y = centred * (scale if self.weight is None else scale * self.weight).view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).to(x.dtype)

    def track(self, mean: Tensor, var: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or not self.training:
            return
        self.batches += 1
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        momentum = 1 / self.batches if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)


def synchronize_batchnorm(model: nn.Module) -> None:
    """Every BatchNorm inside the model gives way to one over all processes that shares its parameters and buffers."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, BatchNorm):
                setattr(module, name, SyncBatchNorm(child))
