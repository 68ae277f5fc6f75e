"""Dynamic routing (Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", 2017)."""

import torch
from torch import Tensor, nn

from mspcaps.capsules.routing.state import RoutingState
from mspcaps.capsules.squash import at_least_fp32, squash


class DynamicRouting(nn.Module):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; softmax over the output capsules, gradients through them all."""

    inputs = ("input",)

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int, iterations: int = 3) -> None:
        super().__init__()
        self.n_out, self.d_out, self.iterations = n_out, d_out, iterations
        self.w = nn.Parameter(torch.randn(n_in, d_in, n_out, d_out) / d_in**0.5)

    def extra_repr(self) -> str:
        n_in, d_in, n_out, d_out = self.w.shape
        return f"n_in={n_in}, d_in={d_in}, n_out={n_out}, d_out={d_out}, iterations={self.iterations}"

    def forward(self, u: Tensor) -> Tensor:
        return self.route(u)[0]

    def state(self, u: Tensor) -> RoutingState:
        """What `forward` computes on its way, in the last iteration."""
        _, votes, logits, coupling = self.route(u)
        return RoutingState(self.inputs, (votes,), logits, coupling, axis=2)

    def route(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """-> output capsules [b, j, e], votes [i, b, j, e]; logits and couplings [i, b, j] of the last iteration."""
        b, n, _ = u.shape
        votes = torch.bmm(u.transpose(0, 1).to(self.w.dtype), self.w.flatten(2))  # [i, b, j e]
        votes = at_least_fp32(votes).view(n, b, self.n_out, self.d_out)
        logits = votes.new_zeros(n, b, self.n_out)  # [i, b, j]
        for iteration in range(self.iterations):
            coupling = logits.softmax(-1)  # [i, b, j], sums to one over j
            v = squash((coupling.unsqueeze(-1) * votes).sum(0))  # [b, j, e]
            if iteration < self.iterations - 1:
                logits = logits + (votes * v).sum(-1)
        return v, votes, logits, coupling
