"""The routing of DA-CapsNet against a plain loop."""

import pytest
import torch
from torch import Tensor

from mspcaps.capsules import DualAttentionRouting
from mspcaps.capsules.routing.dual_attention import Gate


def reference(routing: DualAttentionRouting, u: Tensor) -> tuple[Tensor, Tensor]:
    """-> output capsules [b, j, e] and couplings [i, b, j], one image, capsule and class at a time."""
    b, n_in, _ = u.shape
    _, _, n_out, d_out = routing.w.shape
    first, second = routing.gate.first, routing.gate.second
    outputs, all_couplings = torch.zeros(b, n_out, d_out).to(u), torch.zeros(n_in, b, n_out).to(u)
    for image in range(b):
        votes = [[u[image, i] @ routing.w[0, :, j] for j in range(n_out)] for i in range(n_in)]
        flat = torch.cat([vote for row in votes for vote in row])
        gates = 1 + torch.tanh(second.weight @ (first.weight @ flat + first.bias).clamp(min=0) + second.bias)
        votes = [[gates[i] * vote for vote in row] for i, row in enumerate(votes)]
        logits = torch.zeros(n_in, n_out).to(u)
        for _ in range(routing.iterations):
            couplings = torch.stack([logits[i].exp() / logits[i].exp().sum() for i in range(n_in)])
            for j in range(n_out):
                s = sum((couplings[i, j] * votes[i][j] for i in range(n_in)), torch.zeros(d_out).to(u))
                outputs[image, j] = s.norm() ** 2 / (0.5 + s.norm() ** 2) * s / s.norm()
            agreements = torch.stack([torch.stack([votes[i][j] @ outputs[image, j] for j in range(n_out)])
                                      for i in range(n_in)])  # fmt: skip
            logits = logits + agreements if routing.accumulate else agreements
        all_couplings[:, image] = couplings
    return outputs, all_couplings


@pytest.mark.parametrize("accumulate", [True, False])
@torch.no_grad()
def test_equals_a_loop(accumulate: bool) -> None:
    torch.manual_seed(0)
    routing = DualAttentionRouting(5, 6, 3, 4, accumulate=accumulate).double()
    for p in routing.gate.parameters():
        torch.nn.init.normal_(p, std=0.5)
    u = 2 * torch.randn(2, 5, 6, dtype=torch.float64)
    states: list = []
    v, (expected, couplings) = routing(u, states), reference(routing, u)
    torch.testing.assert_close(v, expected)
    torch.testing.assert_close(states[0].couplings, couplings)
    torch.testing.assert_close(states[0].couplings.sum(states[0].axis), torch.ones(5, 2, dtype=torch.float64))
    assert (couplings - 1 / 3).abs().max() > 0.01, "the iterations made a difference"


def test_a_gate_with_a_zero_second_layer_is_the_identity() -> None:
    gate = Gate(6, 4)
    torch.nn.init.zeros_(gate.second.weight)
    assert torch.equal(gate(torch.randn(3, 6)), torch.ones(3, 4))


def test_gradients_at_zero_are_finite() -> None:
    routing, u = DualAttentionRouting(5, 6, 3, 4), torch.zeros(2, 5, 6, requires_grad=True)
    routing(u).sum().backward()
    assert u.grad is not None and u.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in routing.parameters())


def test_another_number_of_outputs() -> None:
    other = DualAttentionRouting(5, 6, 3, 4, iterations=2, accumulate=False).with_outputs(7)
    assert (other.iterations, other.accumulate) == (2, False)
    assert other(torch.randn(2, 5, 6)).shape == (2, 7, 4)
