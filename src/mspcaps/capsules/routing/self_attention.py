"""Self-attention routing (Mazzia, Salvetti and Chiaberge, "Efficient-CapsNet", 2021): one pass, no iterations.

    vote      U[i,j] = u[i] W[i,j]
    agreement A[i,j] = sum over i' of <U[i,j], U[i',j]> / sqrt(e)
    coupling  C[i,j] = softmax over j
    output    v[j]   = squash( sum over i of (C[i,j] + b[i,j]) U[i,j] ),  squash(s) = (1 - exp(-|s|)) s / |s|

The square root is of the output dimension e, as in the authors' code; the paper has the input dimension. Both add the
prior b after the softmax. It is learnt, starts at zero and is not part of the couplings, which sum to one.
"""

import torch
from torch import Tensor, nn

from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import exponential_squash
from mspcaps.capsules.votes import cast_votes


class SelfAttentionRouting(RoutingBlock):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; softmax over the output capsules."""

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int) -> None:
        super().__init__(n_in=n_in, d_in=d_in, n_out=n_out, d_out=d_out)
        self.w = nn.Parameter(torch.randn(n_in, d_in, n_out, d_out) / d_in**0.5)
        self.prior = nn.Parameter(torch.zeros(n_in, 1, n_out))

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends its RoutingState to `states` if given."""
        U = cast_votes(u.transpose(0, 1), self.w)  # [i, b, j, e]
        A = (U * U.sum(0)).sum(-1) / U.shape[-1] ** 0.5  # [i, b, j]
        C = A.softmax(-1)  # [i, b, j], sums to one over j
        v = exponential_squash(((C + self.prior).unsqueeze(-1) * U).sum(0))  # [b, j, e]
        if states is not None:
            states.append(RoutingState(self, (U,), A, C, axis=2, output=v))
        return v
