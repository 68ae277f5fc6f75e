"""Fusion instead of routing: fine and coarse capsules become one vector, which votes; every vote counts the same.

The paper's introduction argues against this. Letters as in cross_agreement.py. Votes are not weighted, so there are no
couplings and no RoutingState to append.

    addition        x[k] = u2[k] + mean over m of u1[k,m]
    concatenation   x[k] = (u2[k], u1[k,1], ..., u1[k,m])
    output          v[j] = squash( mean over k of x[k] W[k,j] )
"""

from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.cross_agreement import group_fine, group_size
from mspcaps.capsules.routing.state import RoutingBlock, States
from mspcaps.capsules.squash import squash
from mspcaps.capsules.votes import cast_votes
from mspcaps.errors import MspcapsError


class AdditionFusion(RoutingBlock):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out].

    One matrix per coarse capsule serves its fine capsules too, so `shared` can only be true.
    """

    inputs = ("fine", "coarse")

    def __init__(self, fine: Grid, d1: int, coarse: Grid, d2: int, n_out: int, d_out: int, shared: bool = True) -> None:
        super().__init__(fine=fine, d1=d1, coarse=coarse, d2=d2, n_out=n_out, d_out=d_out)
        if not shared:
            raise MspcapsError(f"shared is {shared}, but a fusion has one matrix for fine and coarse capsules together")
        self.fine, self.coarse = fine, coarse
        d = self.fused_dim(d1, d2)
        self.w = nn.Parameter(torch.randn(coarse[0] * coarse[1], d, n_out, d_out) / d**0.5)

    def fused_dim(self, d1: int, d2: int) -> int:
        """Dimension of the vector that votes."""
        if d1 != d2:
            raise MspcapsError(f"capsules can only be added if their dimensions are equal, not {d1} and {d2}")
        return d2

    def fuse(self, u1: Tensor, u2: Tensor) -> Tensor:
        """Groups of fine capsules [b, k, m, d1] and coarse capsules [b, k, d2] -> [b, k, d]."""
        return u2 + u1.mean(2)

    def forward(self, u1: Tensor, u2: Tensor, states: States | None = None) -> Tensor:
        """Leaves `states` unchanged."""
        x = self.fuse(group_fine(u1, self.fine, self.coarse), u2)  # [b, k, d]
        U = cast_votes(x.transpose(0, 1), self.w)  # [k, b, j, e]
        return squash(U.mean(0))  # [b, j, e]

    def tensor_places(self) -> dict[str, Any]:
        """A matrix belongs to a coarse capsule and the window of fine capsules below it."""
        return {"w": (self.coarse, (self.fine[0] // self.coarse[0], self.fine[1] // self.coarse[1]))}


class ConcatenationFusion(AdditionFusion):
    """The same with the capsules concatenated: the matrix has rows for each of them."""

    def fused_dim(self, d1: int, d2: int) -> int:
        return d2 + group_size(self.fine, self.coarse) * d1

    def fuse(self, u1: Tensor, u2: Tensor) -> Tensor:
        return torch.cat([u2, u1.flatten(2)], dim=2)
