"""The routing of DA-CapsNet (Huang and Zhou, "DA-CapsNet: dual attention mechanism capsule network", 2020).

vote      U[i,j] = u[i] W[j], one matrix for all i
gate      a      = 1 + tanh(L2 relu(L1 U)), a number for every i, computed from all votes
output    v[j]   = dynamic routing of a[i] U[i,j], with the squash constant 0.5
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.routing.dynamic import route_votes
from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.capsules.votes import cast_votes

SQUASH_CONSTANT = 0.5


class Gate(nn.Module):
    """[b, inputs] -> factors [b, outputs] in (0, 2): 1 + tanh of two linear layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, outputs)
        self.second = nn.Linear(outputs, outputs)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.to(self.first.weight.dtype)))
        return 1 + at_least_fp32(self.second(x)).tanh()


class DualAttentionRouting(RoutingBlock):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; softmax over output capsules, gradients through all iterations."""

    def __init__(
        self, n_in: int, d_in: int, n_out: int, d_out: int, iterations: int = 3, accumulate: bool = True
    ) -> None:
        super().__init__(n_in=n_in, d_in=d_in, n_out=n_out, d_out=d_out, iterations=iterations, accumulate=accumulate)
        self.iterations, self.accumulate = iterations, accumulate
        bound = (6 / (d_in + n_out * d_out)) ** 0.5  # Glorot's
        self.w = nn.Parameter(torch.empty(1, d_in, n_out, d_out).uniform_(-bound, bound))
        self.gate = Gate(n_in * n_out * d_out, n_in)

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends the RoutingState of the last iteration to `states` if given; its votes are the gated ones."""
        U = cast_votes(u.unsqueeze(0), self.w)[0]  # [b, i, j, e]
        U = U * self.gate(U.flatten(1))[..., None, None]
        U = U.transpose(0, 1)  # [i, b, j, e]
        v, logits, C = route_votes(U, self.iterations, SQUASH_CONSTANT, self.accumulate)
        if states is not None:
            states.append(RoutingState(self, (U,), logits, C, axis=2, output=v))
        return v

    def tensor_places(self) -> dict[str, None]:
        return dict.fromkeys(("gate.first.weight", "gate.first.bias", "gate.second.weight", "gate.second.bias"))
