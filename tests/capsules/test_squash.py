"""Squash and length against the textbook formula, computed in plain Python floats."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules import length, squash

vectors = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=12)


def textbook(s: list[float]) -> list[float]:
    norm = math.sqrt(math.fsum(x * x for x in s))
    return [norm**2 / (1 + norm**2) * x / norm for x in s]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(vectors.filter(lambda s: math.hypot(*s) > 1e-2))
def test_equals_the_textbook_formula_away_from_zero(s):
    actual = squash(torch.tensor(s, dtype=torch.float64))
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, torch.tensor(textbook(s), dtype=torch.float64), rtol=1e-7, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(vectors)
def test_lengths_stay_below_one(s):
    norm = squash(torch.tensor(s)).norm()
    assert 0 <= norm < 1


def test_lengths_grow_with_the_input_from_nearly_nothing_to_nearly_one():
    direction = torch.tensor([0.6, -0.8, 0.0], dtype=torch.float64)
    radii = torch.logspace(-9, 3, 200, dtype=torch.float64)
    norms = squash(radii[:, None] * direction).norm(dim=1)
    assert (norms.diff() > 0).all()
    assert norms[0] < 1e-12 and norms[-1] > 0.999


def test_direction_is_kept():
    s = torch.randn(50, 7, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(s, squash(s), dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_acts_on_the_last_axis_only():
    s = torch.randn(2, 3, 4)
    for b in range(2):
        for j in range(3):
            torch.testing.assert_close(squash(s)[b, j], torch.tensor(textbook(s[b, j].tolist())))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e3])
def test_values_and_gradients_are_finite_in_every_precision(dtype, scale):
    # 1e-4 squares to a float16 zero, 1e3 to a float16 infinity: the squares must be taken in a wider type.
    s = (torch.ones(3, 5) * scale).to(dtype).requires_grad_()
    v = squash(s)
    (v.sum() + length(v).sum() + length(s).sum()).backward()
    assert v.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert v.isfinite().all() and s.grad.isfinite().all()
    if scale:
        expected = torch.tensor([textbook(row) for row in s.detach().double().tolist()])
        torch.testing.assert_close(v.detach().float(), expected, rtol=2e-3, atol=1e-9)
    else:
        assert (v == 0).all()


def test_length_is_the_euclidean_norm():
    v = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 2.0, -2.0]])
    torch.testing.assert_close(length(v), torch.tensor([5.0, 0.0, 3.0]), rtol=0, atol=2e-6)
    assert length(torch.zeros(2, 3, 4)).shape == (2, 3)


def test_gradients_agree_with_finite_differences():
    s = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, s)
    assert torch.autograd.gradcheck(length, s)
