"""Cross-agreement routing (CAR), Algorithm 2 of the paper; comments name its lines.

Letters: b batch, j output capsule, k coarse capsule, m fine capsule within the group of k, d in-dim, e out-dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import squash
from mspcaps.capsules.votes import cast_votes
from mspcaps.errors import MspcapsError


class CrossAgreementRouting(RoutingBlock):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out].

    The weights are the paper's W [n_out, n_in, d_in, d_out], stored with the input capsule first and fine capsules in
    the order of their groups. With `shared` the fine capsules vote with the weights of the coarse capsule above them.
    """

    inputs = ("fine", "coarse")

    def __init__(self, fine: Grid, d1: int, coarse: Grid, d2: int, n_out: int, d_out: int, shared: bool) -> None:
        super().__init__(fine=fine, d1=d1, coarse=coarse, d2=d2, n_out=n_out, d_out=d_out, shared=shared)
        if shared and d1 != d2:
            raise MspcapsError(
                f"shared vote weights need equal capsule dimensions, not {d1} and {d2}: make them equal or do not share"
            )
        self.fine, self.coarse, self.n_out, self.d_out = fine, coarse, n_out, d_out
        k, m = coarse[0] * coarse[1], group_size(fine, coarse)
        self.w2 = nn.Parameter(torch.randn(k, d2, n_out, d_out) / d2**0.5)
        self.w1 = None if shared else nn.Parameter(torch.randn(k * m, d1, n_out, d_out) / d1**0.5)

    def forward(self, u1: Tensor, u2: Tensor, states: States | None = None) -> Tensor:
        """Appends its RoutingState to `states` if given."""
        U1, U2 = self.votes(u1, u2)  # lines 1-6    [k, b, m, j, e], [k, b, j, e]
        a = (U1 * U2.unsqueeze(2)).sum(-1) / self.d_out**0.5  # [k, b, m, j]
        A = self.pool(a)  # line 7       [k, b, j]
        C = A.softmax(0)  # line 8       sums to one over k
        v = squash((C.unsqueeze(-1) * U2).sum(0))  # lines 9-11   [b, j, e]
        if states is not None:
            grids = self.fine, self.coarse
            states.append(RoutingState(self, (U1, U2), A, C, 0, v, fine_agreements=a, grids=grids))
        return v  # line 12

    def votes(self, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
        """-> fine votes [k, b, m, j, e], coarse votes [k, b, j, e]."""
        U2 = cast_votes(u2.transpose(0, 1), self.w2)  # line 1
        u1 = group_fine(u1, self.fine, self.coarse)  # [b, k, m, d]
        if self.w1 is None:  # line 2
            return cast_votes(u1.transpose(0, 1), self.w2), U2  # line 3
        u1 = u1.permute(1, 2, 0, 3)  # [k, m, b, d]
        U1 = cast_votes(u1.flatten(0, 1), self.w1)  # line 5       [k m, b, j, e]
        return U1.unflatten(0, u1.shape[:2]).transpose(1, 2), U2

    def pool(self, agreements: Tensor) -> Tensor:
        """Agreements [k, b, m, j] -> the logit of each coarse capsule [k, b, j]: the maximum over its fine capsules."""
        return agreements.amax(2)

    def tensor_places(self) -> dict[str, Any]:
        """Every coarse capsule has its own matrix, and so has every fine one unless they share it."""
        window = (self.fine[0] // self.coarse[0], self.fine[1] // self.coarse[1])
        return {"w1": (self.coarse, window), "w2": self.coarse}


class MeanAgreementRouting(CrossAgreementRouting):
    """The same with the mean over a group of fine capsules instead of the paper's maximum."""

    def pool(self, agreements: Tensor) -> Tensor:
        """Agreements [k, b, m, j] -> the logit of each coarse capsule [k, b, j]: the mean over its fine capsules."""
        return agreements.mean(2)


def group_size(fine: Grid, coarse: Grid) -> int:
    """m: the number of fine capsules under one coarse capsule."""
    return (fine[0] // coarse[0]) * (fine[1] // coarse[1])


def group_fine(u: Tensor, fine: Grid, coarse: Grid) -> Tensor:
    """[b, n1, d] on the fine grid -> [b, k, m, d]: the window of fine capsules under each coarse capsule k.

    Fine rows and columns beyond a multiple of the coarse grid are dropped. On grids of one row, windows are runs of
    consecutive capsules.
    """
    b, _, d = u.shape
    rows, columns = fine[0] // coarse[0], fine[1] // coarse[1]  # of one window
    u = u.view(b, fine[0], fine[1], d)[:, : rows * coarse[0], : columns * coarse[1]]
    u = u.reshape(b, coarse[0], rows, coarse[1], columns, d)
    u = u.transpose(2, 3)  # [b, row of k, column of k, rows, columns, d]
    return u.reshape(b, coarse[0] * coarse[1], rows * columns, d)
