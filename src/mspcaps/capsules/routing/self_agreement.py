"""Self-agreement: the routing of Efficient-CapsNet (Mazzia et al. 2021) on the votes of cross-agreement routing.

Letters as in cross_agreement.py; i runs over all votes, of the fine capsules and of the coarse ones.

    agreement A[j,i] = sum over i' of <U[j,i], U[j,i']> / sqrt(e)
    coupling  c[j,i] = softmax over i
    output    v[j]   = squash( sum over i of c[j,i] U[j,i] )

No scale speaks for another: every vote counts as far as the rest agrees with it. Weights and their number are those of
cross-agreement routing, so the two differ in nothing but the routing.
"""

import torch
from torch import Tensor

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.routing.state import RoutingState
from mspcaps.capsules.squash import at_least_fp32, squash


class SelfAgreementRouting(CrossAgreementRouting):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out]."""

    def all_votes(self, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
        """-> votes [i, b, j, e], agreements [i, b, j]."""
        fine, coarse = self.votes(u1, u2)  # [k, b, m, j, e], [k, b, j, e]
        votes = torch.cat([fine, coarse.unsqueeze(2)], dim=2)  # [k, b, m + 1, j, e]
        votes = at_least_fp32(votes).transpose(1, 2).flatten(0, 1)  # [i, b, j, e]
        agreement = (votes * votes.sum(0)).sum(-1) / self.d_out**0.5  # [i, b, j]
        return votes, agreement

    def forward(self, u1: Tensor, u2: Tensor) -> Tensor:
        votes, agreement = self.all_votes(u1, u2)
        return squash((agreement.softmax(0).unsqueeze(-1) * votes).sum(0))  # [b, j, e]

    def state(self, u1: Tensor, u2: Tensor) -> RoutingState:
        votes, agreement = self.all_votes(u1, u2)
        return RoutingState(self.inputs, (votes,), agreement, agreement.softmax(0), axis=0)
