"""Local agreement against loops, one vote at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mspcaps.capsules import AgreementPooling, LocalAgreementRouting, RoutingState
from mspcaps.capsules.routing.local_agreement import window_members
from mspcaps.errors import MspcapsError


def block(window: int, e: int = 5) -> LocalAgreementRouting:
    torch.manual_seed(0)
    made = LocalAgreementRouting(e, window).double()
    torch.nn.init.normal_(made.offset)
    torch.nn.init.constant_(made.gain, 1.5)
    return made


def votes(h: int, w: int, j: int = 3, e: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(h * 100 + w)
    shapes = ((2, h, w, j, e), (2, -(-h // 2), -(-w // 2), j, e))
    fine, coarse = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return fine, coarse


def by_hand(made: LocalAgreementRouting, fine: Tensor, whole: Tensor, y: int, x: int) -> tuple[Tensor, float]:
    """Of one image and one class: fine votes [h, w, e], the vote of the whole at (y, x) [e] -> V [e] and A."""
    e, before = len(whole), made.window // 2 - 1
    agreements, parts = [], []
    for m in range(made.window**2):
        row, column = 2 * y - before + m // made.window, 2 * x - before + m % made.window
        there = 0 <= row < len(fine) and 0 <= column < fine.shape[1]
        parts.append(fine[row, column] if there else torch.zeros(e, dtype=fine.dtype))
        agreements.append(float(made.gain) * float((parts[m] + made.offset[m]) @ whole) / math.sqrt(e))
    weights = [math.exp(a) for a in agreements]
    summed = sum((w / sum(weights) * part for w, part in zip(weights, parts, strict=True)), start=whole)
    return summed, math.log(sum(weights) / len(weights))


@settings(deadline=None, max_examples=15)
@given(h=st.integers(1, 7), w=st.integers(1, 7), window=st.sampled_from([2, 4, 6]))
@torch.no_grad()
def test_equals_the_loop(h: int, w: int, window: int) -> None:
    made, (fine, coarse) = block(window), votes(h, w)
    found, support = made(fine, coarse)
    assert found.shape == coarse.shape and support.shape == coarse.shape[:-1]
    for b in range(2):
        for j in range(3):
            for y in range(coarse.shape[1]):
                for x in range(coarse.shape[2]):
                    whole, agreed = by_hand(made, fine[b, :, :, j], coarse[b, y, x, j], y, x)
                    torch.testing.assert_close(found[b, y, x, j], whole)
                    assert float(support[b, y, x, j]) == pytest.approx(agreed, abs=1e-10)


@torch.no_grad()
def test_pooling_equals_the_loop() -> None:
    (V, _), A = votes(3, 4), torch.randn(2, 3, 4, 3, dtype=torch.float64)
    found = AgreementPooling()(V, A)
    for b in range(2):
        for j in range(3):
            places = [(y, x) for y in range(3) for x in range(4)]
            weights = [math.exp(float(A[b, y, x, j])) for y, x in places]
            s = sum(w / sum(weights) * V[b, y, x, j] for w, (y, x) in zip(weights, places, strict=True))
            norm = float(s.norm())  # type: ignore[union-attr]
            torch.testing.assert_close(found[b, j], norm / (1 + norm**2) * s)


@torch.no_grad()
def test_what_a_block_says_it_did_is_what_it_did() -> None:
    made, (fine, coarse) = block(4), votes(5, 6)
    states: list[RoutingState] = []
    wholes, support = made(fine, coarse, states)
    v = AgreementPooling()(wholes, support, states)
    local, pooled = states
    parts, own = local.votes
    assert (parts.shape, own.shape) == ((9, 2, 16, 3, 5), (9, 2, 3, 5)) and local.members is not None
    torch.testing.assert_close(local.couplings, local.agreements.softmax(2))
    torch.testing.assert_close(own + (local.couplings[..., None] * parts).sum(2), wholes.flatten(1, 2).transpose(0, 1))
    flat = fine.flatten(1, 2)  # [b, p, j, e]
    for k, row in enumerate(local.members.tolist()):
        for m, number in enumerate(row):
            assert torch.equal(parts[k, :, m], flat[:, number] if number >= 0 else torch.zeros_like(flat[:, 0]))
    s = (pooled.couplings[..., None] * pooled.votes[-1]).sum(0)
    torch.testing.assert_close(v, s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True)))
    torch.testing.assert_close(pooled.couplings.sum(pooled.axis), torch.ones(2, 3, dtype=torch.float64))


def test_every_fine_place_is_in_some_window_and_none_is_in_one_twice() -> None:
    for grid in ((8, 8), (5, 3), (1, 1)):
        rows = window_members(grid, 4).tolist()
        assert {n for row in rows for n in row} - {-1} == set(range(grid[0] * grid[1]))
        assert all(len({*row} - {-1}) == sum(n >= 0 for n in row) for row in rows)
    assert window_members((4, 4), 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_nothing_far_away_changes_a_whole() -> None:
    made, (fine, coarse) = block(4), votes(12, 12)
    before = made(fine, coarse).votes
    fine[:, :6] = 7.0
    after = made(fine, coarse).votes
    assert torch.equal(before[:, 4:], after[:, 4:]) and not torch.equal(before[:, 3], after[:, 3])


def test_gradients_are_finite_at_zero() -> None:
    made = LocalAgreementRouting(5, 4)
    fine, coarse = torch.zeros(2, 4, 4, 3, 5, requires_grad=True), torch.zeros(2, 2, 2, 3, 5, requires_grad=True)
    AgreementPooling()(*made(fine, coarse)).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (fine, coarse, made.offset, made.gain))


@pytest.mark.parametrize("window", [0, 1, 3])
def test_windows_that_are_not_even_are_refused(window: int) -> None:
    with pytest.raises(MspcapsError, match=str(window)):
        LocalAgreementRouting(5, window)
