"""The two controls against loops, one vote at a time, on the votes of cross-agreement routing's own loop."""

import math

import pytest
import torch
from test_cross_agreement import members, paper_weights

from mspcaps.capsules import MeanAgreementRouting, SelfAgreementRouting

GRIDS = [((4, 4), (2, 2)), ((7, 5), (3, 2)), ((1, 12), (1, 4))]


def softmax(values: list[float]) -> list[float]:
    weights = [math.exp(v - max(values)) for v in values]
    return [w / sum(weights) for w in weights]


def squashed(s: torch.Tensor) -> torch.Tensor:
    norm = float(s.norm())
    return norm / (1 + norm**2) * s


def all_votes(module, u1, u2, b, j):
    """-> [(vote of the coarse capsule, votes of the fine ones below it)] of one image and one output capsule."""
    groups = members(module.fine, module.coarse)
    w2, w1 = paper_weights(module, groups)
    return [(u2[b, k] @ w2[j, k], [u1[b, m] @ w1[j, m] for m in group]) for k, group in enumerate(groups)]


def self_agreement(module, u1, u2, b, j):
    votes = [vote for coarse, fine in all_votes(module, u1, u2, b, j) for vote in (*fine, coarse)]
    agreement = [sum(float(a @ other) for other in votes) / math.sqrt(module.d_out) for a in votes]
    return squashed(sum(c * vote for c, vote in zip(softmax(agreement), votes, strict=True)))


def mean_agreement(module, u1, u2, b, j):
    found = all_votes(module, u1, u2, b, j)
    agreement = [sum(float(f @ c) for f in fine) / len(fine) / math.sqrt(module.d_out) for c, fine in found]
    return squashed(sum(c * vote for c, (vote, _) in zip(softmax(agreement), found, strict=True)))


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("kind", "loop"), [(SelfAgreementRouting, self_agreement), (MeanAgreementRouting, mean_agreement)]
)
def test_equals_the_loop(kind, loop, shared, grids):
    torch.manual_seed(0)
    fine, coarse = grids
    module = kind(fine, 4, coarse, 4 if shared else 6, 3, 5, shared).double()
    u1 = torch.randn(2, fine[0] * fine[1], 4, dtype=torch.float64)
    u2 = torch.randn(2, coarse[0] * coarse[1], 4 if shared else 6, dtype=torch.float64)
    want = torch.stack([torch.stack([loop(module, u1, u2, b, j) for j in range(3)]) for b in range(2)])
    assert torch.allclose(module(u1, u2), want, atol=1e-10)


@pytest.mark.parametrize("kind", [SelfAgreementRouting, MeanAgreementRouting])
def test_gradients_are_finite_at_zero(kind):
    module = kind((4, 4), 4, (2, 2), 4, 3, 5, True)
    u1, u2 = torch.zeros(2, 16, 4, requires_grad=True), torch.zeros(2, 4, 4, requires_grad=True)
    module(u1, u2).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (u1, u2, module.w2))
