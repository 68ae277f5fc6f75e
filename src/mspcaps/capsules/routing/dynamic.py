"""Dynamic routing (Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", 2017)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import squash
from mspcaps.capsules.votes import cast_votes


def route_votes(
    U: Tensor, iterations: int, constant: float = 1.0, accumulate: bool = True, bias: Tensor | None = None,
    leaky: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Votes [i, b, j, e] -> output capsules [b, j, e], and logits and couplings [i, b, j] of the last iteration.

    `constant` is squash's. Without `accumulate` the logits are the agreements of the previous iteration alone. A `bias`
    [j, e] is added to the weighted votes in every iteration. If `leaky`, a vote may go to none of the outputs: the
    softmax gets one more logit, which is always zero, and the couplings sum to less than one.
    """
    logits = U.new_zeros(U.shape[:-1])  # [i, b, j]
    for iteration in range(iterations):
        C = F.pad(logits, (1, 0)).softmax(-1)[..., 1:] if leaky else logits.softmax(-1)  # [i, b, j], sums to one over j
        s = (C.unsqueeze(-1) * U).sum(0)  # [b, j, e]
        v = squash(s if bias is None else s + bias, constant=constant)
        if iteration < iterations - 1:
            agreements = (U * v).sum(-1)
            logits = logits + agreements if accumulate else agreements
    return v, logits, C


class DynamicRouting(RoutingBlock):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; softmax over output capsules, gradients through all iterations.

    With `bias`, each output capsule adds a learnt vector to its weighted votes; `bias` and `leaky` as in `route_votes`.
    """

    def __init__(
        self, n_in: int, d_in: int, n_out: int, d_out: int, iterations: int = 3, bias: bool = False, leaky: bool = False
    ) -> None:
        super().__init__(n_in=n_in, d_in=d_in, n_out=n_out, d_out=d_out, iterations=iterations, bias=bias, leaky=leaky)
        self.iterations, self.leaky = iterations, leaky
        self.w = nn.Parameter(torch.randn(n_in, d_in, n_out, d_out) / d_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out, d_out)) if bias else None

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends the RoutingState of the last iteration to `states` if given."""
        U = cast_votes(u.transpose(0, 1), self.w)  # [i, b, j, e]
        v, logits, C = route_votes(U, self.iterations, bias=self.bias, leaky=self.leaky)
        if states is not None:
            states.append(RoutingState(self, (U,), logits, C, axis=2, output=v))
        return v

    def tensor_places(self) -> dict[str, None]:
        return {"w": None}  # a matrix for each input capsule, whose position only the model knows
