"""Attention routing against its equations, one capsule and one place at a time."""

import math
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import AttentionRouting, ConvAttentionRouting, States
from mspcaps.capsules.routing.attention import Attention

M = TypeVar("M", bound=nn.Module)


def randomized(module: M) -> M:
    """Weights large enough to tell couplings apart, biases that are not zero."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def route_votes(module: Attention, votes: list[list[Tensor]], shortcut: list[Tensor] | None = None) -> list[Tensor]:
    """votes[i][j] of one image at one place, each [e] -> the output capsules, each [e]."""
    outputs = []
    for j in range(len(votes[0])):
        logits = [
            sum(float(module.attention[j, k, :, i] @ votes[i][j]) for i in range(len(votes))) for k in range(len(votes))
        ]
        total = sum(math.exp(logit) for logit in logits)
        s = sum((math.exp(logit) / total * votes[i][j] for i, logit in enumerate(logits)), torch.zeros(()))
        s = s @ module.affine.weight[j] + module.affine.bias[j]
        outputs.append((s if shortcut is None else s + shortcut[j]).tanh())
    return outputs


@settings(deadline=None, max_examples=20)
@given(
    batch=st.integers(1, 3), n_in=st.integers(1, 5), d_in=st.integers(1, 4), n_out=st.integers(1, 4),
    d_out=st.integers(1, 4), seed=st.integers(0, 10**6),
)  # fmt: skip
@torch.no_grad()
def test_equals_the_loop(batch: int, n_in: int, d_in: int, n_out: int, d_out: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = randomized(AttentionRouting(n_in, d_in, n_out, d_out))
    u = torch.randn(batch, n_in, d_in, dtype=torch.float64)
    expected = []
    for image in u:
        votes = [[image[i] @ module.w[i, :, j] + module.bias[i, 0, j] for j in range(n_out)] for i in range(n_in)]
        expected.append(torch.stack(route_votes(module, votes)))
    torch.testing.assert_close(module(u), torch.stack(expected), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_a_map_equals_the_loop_over_its_places(stride: int) -> None:
    torch.manual_seed(stride)
    n_in, d_in, n_out, d_out = 3, 2, 4, 5
    module = randomized(ConvAttentionRouting(n_in, d_in, n_out, d_out, stride))
    u, states = torch.randn(2, n_in, d_in, 5, 4, dtype=torch.float64), States()
    h, w = (5, 4) if stride == 1 else (3, 2)
    shortcut = torch.randn(2, n_out, d_out, h, w, dtype=torch.float64) if stride == 1 else None
    v = module(u, states, shortcut=shortcut)
    assert v.shape == (2, n_out, d_out, h, w)
    kernels = module.transform.weight.unflatten(0, (n_in, n_out, d_out))
    biases = module.transform.bias.unflatten(0, (n_in, n_out, d_out))
    votes = [[F.conv2d(u[:, i], kernels[i, j], biases[i, j], stride, 1) for j in range(n_out)] for i in range(n_in)]
    for b in range(2):
        for y in range(h):
            for x in range(w):
                here = [[vote[b, :, y, x] for vote in row] for row in votes]
                added = None if shortcut is None else [*shortcut[b, :, :, y, x]]
                expected = torch.stack(route_votes(module, here, added))
                torch.testing.assert_close(v[b, :, :, y, x], expected, rtol=1e-5, atol=1e-9)
    (state,) = states
    places = h * w * n_out
    assert state.votes[0].shape == (n_in, 2, places, d_out) and state.output.shape == (2, places, d_out)
    assert state.axis == 0 and state.couplings.shape == (n_in, 2, places)
    torch.testing.assert_close(state.couplings.sum(0), torch.ones(2, places, dtype=torch.float64))
    torch.testing.assert_close(state.couplings, state.agreements.softmax(0))
    torch.testing.assert_close(state.output[:, n_out], v[:, 0, :, 0, 1])  # the first capsule of the second place


def test_zero_capsules_give_zero_with_finite_gradients() -> None:
    u = torch.zeros(2, 6, 4, 3, 3, requires_grad=True)
    for module, given_u in ((AttentionRouting(6, 36, 3, 5), u.flatten(2)), (ConvAttentionRouting(6, 4, 3, 5), u)):
        u.grad = None
        v = module(given_u)
        v.sum().backward()
        assert (v == 0).all() and u.grad is not None and u.grad.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_another_number_of_outputs() -> None:
    assert AttentionRouting(6, 4, 3, 5).with_outputs(7)(torch.rand(2, 6, 4)).shape == (2, 7, 5)
