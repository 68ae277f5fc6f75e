"""Self-agreement: the routing of Efficient-CapsNet (Mazzia et al. 2021) on the votes of cross-agreement routing.

Letters as in cross_agreement.py; i runs over all votes, of the fine capsules and of the coarse ones.

    agreement A[j,i] = sum over i' of <U[j,i], U[j,i']> / sqrt(e)
    coupling  c[j,i] = softmax over i
    output    v[j]   = squash( sum over i of c[j,i] U[j,i] )

Neither scale is favoured: each vote is weighted by how well all votes agree with it. The weights are those of
cross-agreement routing, so the two differ only in the routing.
"""

import torch
from torch import Tensor

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.routing.state import RoutingState, States
from mspcaps.capsules.squash import squash


class SelfAgreementRouting(CrossAgreementRouting):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out]."""

    def forward(self, u1: Tensor, u2: Tensor, states: States | None = None) -> Tensor:
        U1, U2 = self.votes(u1, u2)  # [k, b, m, j, e], [k, b, j, e]
        U = torch.cat([U1, U2.unsqueeze(2)], dim=2).transpose(1, 2).flatten(0, 1)  # [i, b, j, e]
        A = (U * U.sum(0)).sum(-1) / self.d_out**0.5  # [i, b, j]
        C = A.softmax(0)  # sums to one over i
        v = squash((C.unsqueeze(-1) * U).sum(0))  # [b, j, e]
        if states is not None:
            states.append(RoutingState(self, (U,), A, C, axis=0, output=v))
        return v
