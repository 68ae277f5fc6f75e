"""Several processes, started by torchrun: n of them compute what one process with the same batch would.

Every process takes its share of each batch, BatchNorm sees the statistics of the whole batch unless the recipe says
otherwise, and the gradient is averaged as one vector in one message: by gloo on CPUs, by NCCL on GPUs. The same Python
runs eagerly and inside a CUDA graph. NCCL's messages are recorded like any kernel, provided that every process records
the same ones and that the first, which opens the connections, was sent before: the warm-up does that.
"""

import atexit
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from mspcaps.capsules.squash import at_least_fp32

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def join_shares(tensors: list[Tensor], processes: int) -> Tensor:
    """All tensors as one vector, divided so that the sum over the processes is the mean; fp32, as bf16 would round."""
    return torch.cat([tensor.reshape(-1).float() for tensor in tensors]) / processes


@dataclass(frozen=True)
class World:
    """This process among all others."""

    rank: int = 0
    size: int = 1
    grouped: bool = False
    """Whether messages are sent; a group of one process sends them too, to measure their cost."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    def all_reduce_mean(
        self, tensors: list[Tensor], join: Callable[[list[Tensor], int], Tensor] = join_shares
    ) -> list[Tensor]:
        """The mean of each tensor over all processes, in fp32; `join` may be a compiled `join_shares`."""
        if not self.grouped:
            return tensors
        message = join(tensors, self.size)
        dist.all_reduce(message)
        parts = message.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the main process's tensors to every process, in place."""
        if self.grouped:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    # The methods below exchange flags and numbers on the CPU, through gloo, which does not wait for the GPU.

    def any(self, flags: list[bool]) -> list[bool]:
        """Whether any process has set each flag, so that all processes take the same decision."""
        if not self.grouped:
            return flags
        maxima = torch.tensor(flags, dtype=torch.int64)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return [bool(flag) for flag in maxima.tolist()]

    def all_equal(self, *numbers: int) -> bool:
        """Whether all processes have the same numbers."""
        return self.any([self.broadcast_numbers(*numbers) != [*numbers]]) == [False]

    def broadcast_numbers(self, *numbers: float) -> list[float]:
        """The main process's numbers, for all: a difference in rounding must not lead to different decisions."""
        shared = torch.tensor(numbers, dtype=torch.float64)
        self.broadcast([shared])
        return shared.tolist()

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.any([False])


def join_world(device: torch.device) -> World:
    """Join the processes that torchrun started; without torchrun, a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    if not dist.is_initialized():
        store, rank, _ = next(rendezvous("env://"))
        dist.init_process_group(backend(device), store=fresh_store(store, rank, size), rank=rank, world_size=size)
        atexit.register(leave_world)  # not after the run: a process may train several
    return World(dist.get_rank(), size, grouped=True)


def fresh_store(store: dist.Store, rank: int, size: int) -> dist.Store:
    """A part of the store under a new name, which only these processes know.

    When torchrun restarts processes it keeps the store, and the addresses that their predecessors left there would be
    taken for theirs (PyTorch's issue 135712). So each process posts a random word, and the main one answers with that
    word and the new name, until all have confirmed it.
    """
    name = uuid4().hex
    store.set(f"name/{rank}", name)
    if rank > 0:
        while not (answer := store.get(f"answer/{rank}").decode()).startswith(name):  # still one to a predecessor
            time.sleep(0.02)
        name = answer.removeprefix(name)
        store.set(f"heard/{rank}", name)
    waiting = list(range(1, size)) if rank == 0 else []
    while waiting:
        for other in waiting:
            store.set(f"answer/{other}", store.get(f"name/{other}").decode() + name)
        time.sleep(0.02)
        waiting = [i for i in waiting if not (store.check([k := f"heard/{i}"]) and store.get(k).decode() == name)]
    return dist.PrefixStore(name, store)


@contextmanager
def group_of_one(device: torch.device) -> Iterator[World]:
    """A world in which this process sends all messages to itself, to measure their cost without a network."""
    dist.init_process_group(backend(device), store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World(grouped=True)
    finally:
        leave_world()


def backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@torch.library.custom_op("mspcaps::all_reduce_sum", mutates_args=())
def all_reduce_sum(x: Tensor) -> Tensor:
    """The sum over all processes; a custom operator, so that torch.compile does not move the message."""
    total = x.clone()
    dist.all_reduce(total)
    return total


@all_reduce_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


# Every process uses the sum, so the gradient is the sum of their gradients.
all_reduce_sum.register_autograd(lambda ctx, grad: all_reduce_sum(grad))


class SyncBatchNorm(nn.Module):
    """A BatchNorm over the batches of all processes, with the parameters and statistics of the one it replaces; unlike
    PyTorch's own, it also runs on CPUs."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: BatchNorm, world: World) -> None:
        super().__init__()
        self.rank, self.processes = world.rank, world.size
        self.eps, self.momentum, self.training = norm.eps, norm.momentum, norm.training
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(norm, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        if self.momentum is None and self.num_batches_tracked is None and self.running_mean is not None:
            counter = self.running_mean.new_zeros((), dtype=torch.int64)
            self.register_buffer("num_batches_tracked", counter, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            statistics = self.running_mean, self.running_var
            return F.batch_norm(x, *statistics, self.weight, self.bias, False, 0.0, self.eps)
        x32, dims, shape = at_least_fp32(x), [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        own = torch.stack(torch.var_mean(x32, dims, correction=0))  # [2, c]
        before, after = self.rank, self.processes - 1 - self.rank
        rows = all_reduce_sum(F.pad(own[None], (0, 0, 0, 0, before, after)))  # [processes, 2, c], in one message
        variances, means = rows.unbind(1)
        mean = means.mean(0)
        var = (variances + (means - mean).square()).mean(0)  # within the shares, and between them
        count = self.processes * x.numel() / x.shape[1]
        self.track(mean.detach(), var.detach() * count / (count - 1))
        scale = (var + self.eps).rsqrt()
        y = (x32 - mean.view(shape)) * (scale if self.weight is None else scale * self.weight).view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).to(x.dtype)

    def track(self, mean: Tensor, var: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or not self.training:
            return
        momentum: Any = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            if momentum is None:  # cumulative average; a tensor, as a CUDA graph would freeze a Python number
                momentum = 1 / self.num_batches_tracked
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)


def synchronize_batchnorm(model: nn.Module, world: World) -> None:
    """Replace every BatchNorm inside the model by one over all processes that shares its parameters and buffers."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, BatchNorm):
                setattr(module, name, SyncBatchNorm(child, world))
