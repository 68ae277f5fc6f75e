"""Cross-agreement routing (CAR), Algorithm 2 of the paper.

Letters: b batch, j output capsule, k coarse capsule, m fine capsule within the group of k, d in-dim, e out-dim.
"""

import torch
from torch import Tensor, nn

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.grouping import group_fine, group_size
from mspcaps.capsules.routing.state import RoutingState
from mspcaps.capsules.squash import at_least_fp32, squash
from mspcaps.errors import MspcapsError
from mspcaps.kernels import TRITON
from mspcaps.kernels.routing import cross_agreement, cross_agreement_pair, supported


class CrossAgreementRouting(nn.Module):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out].

    The weights are the paper's W [n_out, n_in, d_in, d_out], stored with the input capsule first (fine ones in the
    order of their groups): then the votes of the whole batch are one batched matrix product. With `shared` the fine
    capsules vote with the weights of the coarse capsule above them.
    """

    inputs = ("fine", "coarse")

    def __init__(self, fine: Grid, d1: int, coarse: Grid, d2: int, n_out: int, d_out: int, shared: bool) -> None:
        super().__init__()
        if shared and d1 != d2:
            raise MspcapsError(
                f"shared vote weights need equal capsule dimensions, not {d1} and {d2}: make them equal or do not share"
            )
        self.fine, self.coarse, self.n_out, self.d_out = fine, coarse, n_out, d_out
        k, m = coarse[0] * coarse[1], group_size(fine, coarse)
        self.w2 = nn.Parameter(torch.randn(k, d2, n_out, d_out) / d2**0.5)
        self.w1 = None if shared else nn.Parameter(torch.randn(k * m, d1, n_out, d_out) / d1**0.5)

    def extra_repr(self) -> str:
        return (
            f"fine={self.fine}, coarse={self.coarse}, n_out={self.n_out}, d_out={self.d_out}, shared={self.w1 is None}"
        )

    def joint_votes(self, u1: Tensor, u2: Tensor) -> Tensor:
        """Shared weights -> votes of the fine capsules and of the coarse one above them [k, b, m + 1, j, e]."""
        u1 = group_fine(u1, self.fine, self.coarse).transpose(0, 1)  # [k, b, m, d]
        u = torch.cat([u1, u2.transpose(0, 1).unsqueeze(2)], dim=2)  # [k, b, m + 1, d]
        votes = torch.bmm(u.flatten(1, 2).to(self.w2.dtype), self.w2.flatten(2))  # [k, b (m + 1), j e]
        return votes.view(*u.shape[:3], self.n_out, self.d_out)

    def votes(self, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
        """-> fine votes [k, b, m, j, e], coarse votes [k, b, j, e]."""
        if self.w1 is None:
            votes = self.joint_votes(u1, u2)
            return votes[:, :, :-1], votes[:, :, -1]
        u1 = group_fine(u1, self.fine, self.coarse).permute(1, 2, 0, 3)  # [k, m, b, d]
        fine = torch.bmm(u1.flatten(0, 1).to(self.w1.dtype), self.w1.flatten(2))  # [k m, b, j e]
        fine = fine.view(*u1.shape[:3], self.n_out, self.d_out).transpose(1, 2)
        coarse = torch.bmm(u2.transpose(0, 1).to(self.w2.dtype), self.w2.flatten(2))  # [k, b, j e]
        return fine, coarse.view(*coarse.shape[:2], self.n_out, self.d_out)

    def agreements(self, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
        """-> <fine vote, coarse vote> / sqrt(e) [k, b, m, j], coarse votes [k, b, j, e]."""
        fine, coarse = map(at_least_fp32, self.votes(u1, u2))
        return self.agree(fine, coarse), coarse

    def agree(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Votes in fp32 -> their agreements [k, b, m, j]."""
        return (fine * coarse.unsqueeze(2)).sum(-1) / self.d_out**0.5

    def forward(self, u1: Tensor, u2: Tensor) -> Tensor:
        if self.runs_fused(u2):
            if self.w1 is None:
                return cross_agreement(self.joint_votes(u1, u2))
            return cross_agreement_pair(*self.votes(u1, u2))
        agreement, coarse = self.agreements(u1, u2)
        coupling = self.couplings(agreement)
        return squash((coupling.unsqueeze(-1) * coarse).sum(0))  # [b, j, e]

    def couplings(self, agreement: Tensor) -> Tensor:
        """Agreements [k, b, m, j] -> couplings [k, b, j]; they sum to one over k."""
        return self.pooled(agreement).softmax(0)

    def pooled(self, agreement: Tensor) -> Tensor:
        """Agreements [k, b, m, j] -> what a coarse capsule is weighed by [k, b, j]."""
        return agreement.amax(2)

    def state(self, u1: Tensor, u2: Tensor) -> RoutingState:
        """What `forward` computes on its way, for whoever looks into the routing."""
        fine, coarse = map(at_least_fp32, self.votes(u1, u2))
        each = self.agree(fine, coarse)
        return RoutingState(self.inputs, (fine, coarse), self.pooled(each), self.couplings(each), axis=0, each=each)

    def runs_fused(self, u2: Tensor) -> bool:
        """On a GPU everything after the votes is one kernel; what stands above, and in subclasses, defines it."""
        if not (u2.is_cuda and TRITON and type(self) is CrossAgreementRouting):
            return False
        m = group_size(self.fine, self.coarse)
        return supported(u2.shape[1], m, self.n_out, self.d_out, u2.dtype)
