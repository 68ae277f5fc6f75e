"""`mspcaps bench votes`: peak memory of a forward and backward pass through a routing, in our form and the plain form.

The plain form is how votes are usually written: every capsule times every matrix, with all products in memory before
they are summed. Both run on the meta device, which has shapes but no numbers, so the peak is exact, the same on every
machine, and takes no time to measure.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mspcaps.bench.result import choose_batch
from mspcaps.capsules import DynamicRouting, InvertedAttentionRouting
from mspcaps.capsules.routing.dynamic import route_votes
from mspcaps.capsules.routing.inverted_attention import SIDE
from mspcaps.models import create_model

FAMILIES = ("capsnet", "deepcaps", "idp_capsnet")
BATCH = 128
META = torch.device("meta")


@dataclass(frozen=True)
class VoteMemory:
    """Peak memory of one routing of one family, for one batch in fp32."""

    model: str
    routing: str  # its path in the model
    votes_bytes: int  # of all votes alone
    ours_bytes: int
    plain_bytes: int


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of all live tensors and records the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.storages:
                storage = tensor.untyped_storage()
                self.storages.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def forget(self, key: int, size: int) -> None:
        self.storages.discard(key)
        self.now -= size


def peak_bytes(forward: Callable[[], Tensor]) -> int:
    """Peak of a forward and backward pass, not counting tensors that existed before it."""
    with LiveBytes() as live:
        forward().sum().backward()
    return live.peak


def plain_votes(u: Tensor, w: Tensor) -> Tensor:
    """Capsules [i, ..., d], matrices [i, d, j, e] -> votes [i, ..., j, e]."""
    matrices = w.view(len(w), *(1,) * (u.ndim - 2), *w.shape[1:])
    return (u[..., None, None] * matrices).sum(-3)


def plain_attention(routing: InvertedAttentionRouting, u: Tensor, v: Tensor) -> Tensor:
    """All cells of a kernel vote together: inputs [b, rows, columns, n_in, e], outputs [b, h, w, j, e] -> outputs."""
    windows = [window for window, _ in routing.windows(u, *v.shape[1:3])]
    poses = torch.cat(windows).unflatten(-1, (SIDE, SIDE)).movedim(4, 1).flatten(0, 1)  # [i, b, h, w, p, q]
    V = plain_votes(poses, routing.w)  # [i, b, h, w, p, j, r]
    A = (V * v.unflatten(-1, (SIDE, SIDE)).transpose(3, 4)).sum((-3, -1)) / SIDE  # [i, b, h, w, j]
    s = (A.softmax(-1)[..., None, :, None] * V).sum(0)  # [b, h, w, p, j, r]
    return routing.norm(s.transpose(3, 4).flatten(-2))


def measure_dynamic(model: str, path: str, routing: DynamicRouting, batch_size: int) -> VoteMemory:
    n_in, d_in, n_out, d_out = routing.w.shape
    u = torch.empty(batch_size, n_in, d_in, device=META, requires_grad=True)

    def plain() -> Tensor:
        votes = plain_votes(u.transpose(0, 1), routing.w)
        return route_votes(votes, routing.iterations, bias=routing.bias, leaky=routing.leaky)[0]

    votes = 4 * batch_size * n_in * n_out * d_out
    return VoteMemory(model, path, votes, peak_bytes(lambda: routing(u)), peak_bytes(plain))


def measure_inverted(
    model: str, path: str, routing: InvertedAttentionRouting, grid: tuple[int, int], batch_size: int
) -> VoteMemory:
    h, w = routing.out_grid(*grid)
    u = torch.empty(batch_size, *grid, routing.n_in, SIDE**2, device=META, requires_grad=True)
    v = torch.empty(batch_size, h, w, routing.n_out, SIDE**2, device=META, requires_grad=True)
    ours, plain = peak_bytes(lambda: routing(u, v)), peak_bytes(lambda: plain_attention(routing, u, v))
    return VoteMemory(model, path, 4 * batch_size * h * w * len(routing.w) * routing.n_out * SIDE**2, ours, plain)


def bench_votes(batch_size: int | None = None, img_size: int = 32) -> list[VoteMemory]:
    """Every routing with a matrix per pair of capsules, for images of 3 channels and 10 classes."""
    batch_size = choose_batch(batch_size, BATCH)
    costs = []
    for name in FAMILIES:
        with META:
            model: nn.Module = create_model(name, img_size=img_size)
        grid = ((img_size + 1) // 2, (img_size + 1) // 2)  # of the primary capsules of IDP-CapsNet
        for path, module in model.named_modules():
            if isinstance(module, DynamicRouting):
                costs.append(measure_dynamic(name, path, module, batch_size))
            elif isinstance(module, InvertedAttentionRouting):
                costs.append(measure_inverted(name, path, module, grid, batch_size))
                grid = module.out_grid(*grid)
    return costs
