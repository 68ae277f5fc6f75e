"""Inverted dot-product attention routing (Tsai et al., "Capsules with Inverted Dot-Product Attention Routing", 2020).

Letters: b batch, h rows, w columns, i input capsule (kernel cell and type), j type of output capsule, e entries of a
pose, which is a 4 x 4 matrix: p x q in an input, p x r in an output.

    votes      V[i,j] = P[i] W[i,j]                        matrices of 4 x 4, the pose on the left
    agreement  A[i,j] = <P[j], V[i,j]> / sqrt(e)           with the pose of output j from the previous pass
    couplings  C[i]   = softmax over j                     outputs compete for each input
    output     P[j]   = LayerNorm( sum over i of C[i,j] V[i,j] )

In the first pass outputs have no pose yet and C = 1 / n_out, which makes the sum an ordinary convolution.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.capsules.votes import cast_votes

SIDE = 4  # rows and columns of a pose


class InvertedAttentionRouting(RoutingBlock):
    """Capsules [b, rows, columns, n_in, 16] and previous outputs [b, h, w, n_out, 16] -> outputs of the same shape.

    A window of `kernel` inputs votes for the outputs at one position; a kernel as large as the map makes a fully
    connected layer. To save memory, the votes of one kernel cell are computed at a time and again in the backward pass:
    what a cell adds to the outputs does not depend on the other cells.
    """

    def __init__(self, n_in: int, n_out: int, kernel: Grid, stride: int = 1) -> None:
        super().__init__(n_in=n_in, n_out=n_out, kernel=kernel, stride=stride)
        self.n_in, self.n_out, self.kernel, self.stride = n_in, n_out, kernel, stride
        cells = kernel[0] * kernel[1]
        scale = (n_out / (SIDE * n_in * cells)) ** 0.5
        self.w = nn.Parameter(torch.randn(cells * n_in, SIDE, n_out, SIDE) * scale)  # [i, q, j, r]
        self.norm = nn.LayerNorm(SIDE * SIDE)

    def out_grid(self, rows: int, columns: int) -> Grid:
        """The grid of the outputs, for inputs on a grid of `rows` x `columns`."""
        return (rows - self.kernel[0]) // self.stride + 1, (columns - self.kernel[1]) // self.stride + 1

    def forward(self, u: Tensor, v: Tensor | None = None, states: States | None = None) -> Tensor:
        """Without previous outputs v all couplings are equal; else appends its RoutingState to `states` if given."""
        if v is None:
            return self.norm(self.mean_votes(u).to(self.norm.weight.dtype))
        s, details = torch.zeros((), device=u.device), []
        for window, w in self.windows(u, *v.shape[1:3]):
            if states is not None:
                part, A, C, V = attend(window, w, v)
                details.append((A, C, V if v.shape[1:3] == (1, 1) else None))
            elif torch.is_grad_enabled():
                part = checkpoint(weighted_votes, window, w, v, use_reentrant=False, preserve_rng_state=False)
            else:
                part = weighted_votes(window, w, v)
            s = s + part  # [b, h, w, j, e]
        out = self.norm(s.to(self.norm.weight.dtype))
        if states is not None:
            states.append(self.state(details, out))
        return out

    def mean_votes(self, u: Tensor) -> Tensor:
        """-> [b, h, w, j, e]: the sum of all votes / n_out. Each row p of a pose is treated as a separate image."""
        x = u.unflatten(-1, (SIDE, SIDE)).permute(0, 4, 3, 5, 1, 2)  # [b, p, i, q, rows, columns]
        kernel = self.w.unflatten(0, (*self.kernel, self.n_in)).permute(4, 5, 2, 3, 0, 1)  # [j, r, i, q, y, x]
        s = F.conv2d(
            x.flatten(0, 1).flatten(1, 2).to(kernel.dtype), kernel.flatten(0, 1).flatten(1, 2), stride=self.stride
        )  # [b p, j r, h, w]
        s = at_least_fp32(s).unflatten(1, (self.n_out, SIDE)).unflatten(0, (-1, SIDE))  # [b, p, j, r, h, w]
        return s.permute(0, 4, 5, 2, 1, 3).flatten(-2) / self.n_out

    def windows(self, u: Tensor, h: int, w: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs that vote together [cells, b, h, w, n_in, e] and their matrices [i, q, j, r]: those under one cell of
        the kernel, or all of them if there is a single output position."""
        rows, columns = self.kernel
        if h * w == 1:
            yield u[:, :rows, :columns].flatten(1, 2).transpose(0, 1)[:, :, None, None], self.w
            return
        for cell, matrices in enumerate(self.w.split(self.n_in)):
            y, x = divmod(cell, columns)
            below = u[:, y : y + self.stride * (h - 1) + 1 : self.stride]
            yield below[None, :, :, x : x + self.stride * (w - 1) + 1 : self.stride], matrices

    def state(self, details: list[tuple[Tensor, Tensor, Tensor | None]], out: Tensor) -> RoutingState:
        """Couplings are [i, b, j], or [i, b, j, h, w] for a convolution, which has too many votes to keep."""
        A, C = (torch.cat(parts).movedim(-1, 2) for parts in list(zip(*details, strict=True))[:2])  # [i, b, j, h, w]
        V = details[0][2]  # [i, b, 1, 1, p, j, r]
        if V is None:
            return RoutingState(self, (), A, C, axis=2, output=out.flatten(1, 3))
        votes = V[:, :, 0, 0].transpose(2, 3).flatten(-2)  # [i, b, j, e]
        return RoutingState(self, (votes,), A[..., 0, 0], C[..., 0, 0], axis=2, output=out.flatten(1, 3))

    def tensor_places(self) -> dict[str, Any]:
        return {"w": self.kernel}  # a matrix belongs to a cell of the kernel


def attend(window: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs [cells, b, h, w, n_in, e], matrices [i, q, j, r], previous outputs [b, h, w, j, e]
    -> weighted votes [b, h, w, j, e], agreements and couplings [i, b, h, w, j], votes [i, b, h, w, p, j, r]."""
    u = window.unflatten(-1, (SIDE, SIDE)).movedim(4, 1).flatten(0, 1)  # [i, b, h, w, p, q]
    V = cast_votes(u, w)  # [i, b, h, w, p, j, r]
    P = at_least_fp32(v).unflatten(-1, (SIDE, SIDE)).transpose(3, 4)  # [b, h, w, p, j, r]
    A = (V * P).sum((-3, -1)) / SIDE  # [i, b, h, w, j]; SIDE is the square root of e
    C = A.softmax(-1)
    s = (C[..., None, :, None] * V).sum(0)  # [b, h, w, p, j, r]
    return s.transpose(3, 4).flatten(-2), A, C, V


def weighted_votes(window: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """The first result of `attend`: [b, h, w, j, e]."""
    return attend(window, w, v)[0]
