"""Fusion in the place of routing against loops, one capsule at a time."""

import pytest
import torch
from test_cross_agreement import RUNS, SQUARE, UNEVEN, members

from mspcaps.capsules import AdditionFusion, ConcatenationFusion, RoutingState
from mspcaps.errors import MspcapsError

KINDS = [AdditionFusion, ConcatenationFusion]


def example(kind, fine, coarse, d1=3, dtype=torch.float64):
    torch.manual_seed(0)
    module = kind(fine, d1, coarse, 3, 4, 5).to(dtype)
    u1 = torch.randn(2, fine[0] * fine[1], d1, dtype=dtype)
    return module, u1, torch.randn(2, coarse[0] * coarse[1], 3, dtype=dtype)


def loop(module, u1, u2):
    groups, v = members(module.fine, module.coarse), torch.zeros(len(u1), 4, 5, dtype=u1.dtype)
    for b in range(len(u1)):
        for j in range(4):
            s = torch.zeros(5, dtype=u1.dtype)
            for k, group in enumerate(groups):
                if type(module) is AdditionFusion:
                    numbers = [
                        float(u2[b, k, d]) + sum(float(u1[b, m, d]) for m in group) / len(group) for d in range(3)
                    ]
                else:
                    numbers = [float(n) for capsule in (u2[b, k], *(u1[b, m] for m in group)) for n in capsule]
                for d, number in enumerate(numbers):
                    s += number * module.w[k, d, j].detach() / len(groups)
            norm = float(s.norm())
            v[b, j] = norm / (1 + norm**2) * s
    return v


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grids", [SQUARE, UNEVEN, RUNS])
def test_equals_the_loop(kind, grids):
    module, u1, u2 = example(kind, *grids)
    torch.testing.assert_close(module(u1, u2), loop(module, u1, u2), rtol=1e-6, atol=1e-8)


def test_only_a_concatenation_takes_capsules_of_other_dimensions():
    module, u1, u2 = example(ConcatenationFusion, *SQUARE, d1=2)
    assert module.w.shape == (4, 3 + 4 * 2, 4, 5)
    torch.testing.assert_close(module(u1, u2), loop(module, u1, u2), rtol=1e-6, atol=1e-8)
    with pytest.raises(MspcapsError, match="2 and 3"):
        AdditionFusion(*SQUARE[:1], 2, SQUARE[1], 3, 4, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_matrix_per_coarse_capsule_and_no_couplings(kind):
    module, u1, u2 = example(kind, *UNEVEN)
    states: list[RoutingState] = []
    assert torch.equal(module(u1, u2, states), module(u1, u2)) and states == []
    with pytest.raises(MspcapsError, match="False"):
        kind((4, 4), 3, (2, 2), 3, 4, 5, shared=False)
    places = {grids: kind(grids[0], 3, grids[1], 3, 4, 5).tensor_places()["w"] for grids in (SQUARE, UNEVEN, RUNS)}
    assert len(set(places.values())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_vote_weights_start_with_deviation_one_over_the_root_of_the_input_dimension(kind):
    torch.manual_seed(0)
    w = kind((8, 8), 8, (4, 4), 8, 16, 16).w
    assert w.std().item() == pytest.approx(w.shape[1] ** -0.5, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_outputs_changes_nothing_else(kind):
    module, _, _ = example(kind, *UNEVEN)
    other = module.with_outputs(9)
    n, d, _, e = module.w.shape
    assert type(other) is kind and (other.fine, other.coarse) == UNEVEN and other.w.shape == (n, d, 9, e)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_at_zero_and_half_precision_votes_in_float32(kind):
    module = kind((4, 4), 4, (2, 2), 4, 3, 5)
    u1, u2 = torch.zeros(2, 16, 4, requires_grad=True), torch.zeros(2, 4, 4, requires_grad=True)
    module(u1, u2).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (u1, u2, module.w))
    assert module.bfloat16()(u1.bfloat16(), u2.bfloat16()).dtype == torch.float32
