"""The losses on lengths against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules import length_cross_entropy, margin_loss


def loop(scores: list[list[float]], labels: list[int], m_plus: float, m_minus: float, absent: float) -> float:
    total = 0.0
    for row, label in zip(scores, labels, strict=True):
        for j, score in enumerate(row):
            total += max(0, m_plus - score) ** 2 if j == label else absent * max(0, score - m_minus) ** 2
    return total / len(scores)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(2, 12), st.integers(0, 10**6))
def test_equals_the_loop(batch, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    expected = loop(scores.tolist(), labels.tolist(), 0.9, 0.1, 0.5)
    assert margin_loss(scores, labels).item() == pytest.approx(expected, abs=1e-12)
    expected = loop(scores.tolist(), labels.tolist(), 0.8, 0.3, 0.25)
    loss = margin_loss(scores, labels, m_plus=0.8, m_minus=0.3, absent=0.25)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_is_zero_exactly_inside_the_margins():
    labels = torch.tensor([1])
    assert margin_loss(torch.tensor([[0.1, 0.9, 0.05]]), labels) == 0
    assert margin_loss(torch.tensor([[0.1, 0.8, 0.05]]), labels) == pytest.approx(0.01)
    assert margin_loss(torch.tensor([[0.3, 0.9, 0.05]]), labels) == pytest.approx(0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_give_a_float32_loss(dtype):
    scores = torch.rand(8, 5).to(dtype).requires_grad_()
    labels = torch.arange(8) % 5
    loss = margin_loss(scores, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(loop(scores.tolist(), labels.tolist(), 0.9, 0.1, 0.5), rel=1e-5)
    assert scores.grad.isfinite().all()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(2, 12), st.integers(0, 10**6))
def test_soft_targets_weigh_both_terms(batch, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, classes, dtype=torch.float64, generator=generator)
    soft = torch.rand(batch, classes, dtype=torch.float64, generator=generator).softmax(1)
    expected = 0.0
    for row, targets in zip(scores.tolist(), soft.tolist(), strict=True):
        for score, t in zip(row, targets, strict=True):
            expected += t * max(0, 0.9 - score) ** 2 + 0.5 * (1 - t) * max(0, score - 0.1) ** 2
    assert margin_loss(scores, soft).item() == pytest.approx(expected / batch, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_hot_targets_are_class_numbers_to_the_bit(dtype):
    scores, labels = torch.rand(16, 10).to(dtype), torch.arange(16) % 10
    one_hot = torch.nn.functional.one_hot(labels, 10)
    for soft in (one_hot.float(), one_hot.bfloat16()):
        assert torch.equal(margin_loss(scores, soft), margin_loss(scores, labels))


def test_the_compiler_follows_the_whole_loss():
    compiled = torch.compile(margin_loss, backend="eager", fullgraph=True)
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(compiled(scores, labels), margin_loss(scores, labels))


def test_cross_entropy_on_lengths_equals_the_loop():
    scores = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, 2])
    rows = [[math.exp(12 * score) for score in row] for row in scores.tolist()]
    expected = sum(-math.log(row[label] / sum(row)) for row, label in zip(rows, labels.tolist(), strict=True)) / 4
    assert length_cross_entropy(scores, labels).item() == pytest.approx(expected, abs=1e-12)
    assert length_cross_entropy(scores, torch.eye(3).double()[labels]).item() == pytest.approx(expected, abs=1e-12)
