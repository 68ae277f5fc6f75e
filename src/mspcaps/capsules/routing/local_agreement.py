"""Local agreement: the routing of LaCaps. A part votes only for the wholes whose window it lies in.

Letters: b batch, j class, e dimension of a vote, q position of a whole on its grid, m position in the window of q, p
the position of that part on the fine grid. The grid of the wholes has half the resolution of the parts', rounded up. A
window is the 2 x 2 square of parts below q or, if larger, a square with these in its middle.

    agreement  a[q,m,j] = g <U1[p,j] + o[m], U2[q,j]> / sqrt(e)
    coupling   c[q,m,j] = softmax over m
    whole      V[q,j]   = U2[q,j] + sum over m of c[q,m,j] U1[p,j]
    support    A[q,j]   = log of the mean over m of exp a[q,m,j]

and, from the coarsest wholes to the classes,

    coupling   C[q,j]   = softmax over q of A[q,j]
    class      v[j]     = squash( sum over q of C[q,j] V[q,j] )

U1 are the votes of the parts, zero where a window reaches beyond the border, and U2 the votes of the wholes; on the
next scale V is used as U1. The only parameters are o, which lets a whole prefer positions in its window, and g, which
scales the agreement. No weight belongs to a position in the image: the same weights serve every image size, and the
cost grows with the number of pixels.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import squash
from mspcaps.errors import MspcapsError

INITIAL_GAIN = 10.0  # of g: votes start short, and so do their scalar products


class Wholes(NamedTuple):
    """What a block computes from the votes of parts and wholes."""

    votes: Tensor  # V [b, h, w, j, e]
    support: Tensor  # A [b, h, w, j]


class LocalAgreementRouting(RoutingBlock):
    """Votes of parts [b, h1, w1, j, e] and of wholes [b, h2, w2, j, e], h2 = ceil(h1 / 2) -> Wholes."""

    inputs = ("fine", "coarse")

    def __init__(self, d_out: int, window: int) -> None:
        super().__init__(d_out=d_out, window=window)
        if window < 2 or window % 2:
            raise MspcapsError(f"window is {window}, but must be even and at least 2: a whole lies between parts")
        self.window = window
        self.offset = nn.Parameter(torch.zeros(window * window, d_out))  # o
        self.gain = nn.Parameter(torch.full((1,), INITIAL_GAIN))  # g

    def forward(self, U1: Tensor, U2: Tensor, states: States | None = None) -> Wholes:
        """Appends its RoutingState to `states` if given."""
        parts = windows(U1, self.window)  # [b, h, w, m, j, e]
        a = ((parts + self.offset[:, None]) * U2.unsqueeze(3)).sum(-1)  # [b, h, w, m, j]
        a = self.gain / U2.shape[-1] ** 0.5 * a
        c = a.softmax(3)  # sums to one over m
        V = U2 + (c.unsqueeze(-1) * parts).sum(3)  # [b, h, w, j, e]
        A = a.logsumexp(3) - math.log(a.shape[3])  # [b, h, w, j]
        if states is not None:
            votes = by_position(parts), by_position(U2)
            members = window_members((U1.shape[1], U1.shape[2]), self.window)
            state = RoutingState(self, votes, by_position(a), by_position(c), 2, V.flatten(1, 3), members=members)
            states.append(state)
        return Wholes(V, A)


class AgreementPooling(nn.Module):
    """Wholes of the coarsest scale, V [b, h, w, j, e] and A [b, h, w, j] -> class capsules [b, j, e]."""

    inputs = ("wholes", "support")

    def forward(self, V: Tensor, A: Tensor, states: States | None = None) -> Tensor:
        """Appends its RoutingState to `states` if given."""
        C = A.flatten(1, 2).softmax(1)  # [b, q, j], sums to one over q
        v = squash((C.unsqueeze(-1) * V.flatten(1, 2)).sum(1))  # [b, j, e]
        if states is not None:
            states.append(RoutingState(self, (by_position(V),), by_position(A), C.transpose(0, 1), 0, v))
        return v


def by_position(t: Tensor) -> Tensor:
    """[b, h, w, ...] -> [q, b, ...], as in a RoutingState."""
    return t.flatten(1, 2).transpose(0, 1)


def windows(U: Tensor, window: int) -> Tensor:
    """[b, h1, w1, ...] -> [b, h2, w2, m, ...]: the window of every position of the grid of half the resolution.

    Beyond the border everything is zero. Slices instead of a gather: every compiler and exporter supports them.
    """
    h, w = U.shape[1:3]
    rows, columns, before = -(-h // 2), -(-w // 2), window // 2 - 1
    below, right = (2 * n + before - side for n, side in ((rows, h), (columns, w)))
    padded = F.pad(U.flatten(3), (0, 0, before, right, before, below)).unflatten(3, U.shape[3:])
    parts = [
        padded[:, y : y + 2 * rows - 1 : 2, x : x + 2 * columns - 1 : 2] for y in range(window) for x in range(window)
    ]
    return torch.stack(parts, 3)


def window_members(fine: Grid, window: int) -> Tensor:
    """int64 [q, m]: the index of the fine position p, row by row; -1 beyond the border."""
    numbers = torch.arange(1, fine[0] * fine[1] + 1).view(1, *fine, 1)
    return windows(numbers, window)[0, ..., 0].flatten(0, 1) - 1
