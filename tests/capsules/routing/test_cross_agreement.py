"""Cross-agreement routing against a loop written from the paper's Algorithm 2, in the paper's weight layout."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules import CrossAgreementRouting, MeanAgreementRouting, SelfAgreementRouting
from mspcaps.errors import MspcapsError

SQUARE = ((4, 4), (2, 2))
UNEVEN = ((7, 5), (3, 2))  # windows of 2 x 2; one fine row and one fine column are left over
RUNS = ((1, 12), (1, 4))
SAME = ((2, 3), (2, 3))


def members(fine, coarse):
    """For each coarse capsule the row-major numbers of the fine capsules under it."""
    r, c = fine[0] // coarse[0], fine[1] // coarse[1]
    return [
        [row * fine[1] + column for row in range(i * r, (i + 1) * r) for column in range(j * c, (j + 1) * c)]
        for i in range(coarse[0])
        for j in range(coarse[1])
    ]


def paper_weights(module, groups):
    """Stored [n_in, d_in, n_out, d_out] -> the paper's W2 [n_out, n2, d2, d_out] and W1 {(j, fine): [d1, d_out]}."""
    w2 = module.w2.detach().permute(2, 0, 1, 3)
    if module.w1 is None:
        return w2, {(j, i): w2[j, k] for j in range(module.n_out) for k, g in enumerate(groups) for i in g}
    w1 = module.w1.detach().permute(2, 0, 1, 3)
    order = [i for g in groups for i in g]
    return w2, {(j, i): w1[j, position] for j in range(module.n_out) for position, i in enumerate(order)}


def loop(module, u1, u2):
    """v [b, j, e] and the couplings c[b][j][k], one vote at a time."""
    groups = members(module.fine, module.coarse)
    w2, w1 = paper_weights(module, groups)
    v, couplings = torch.zeros(len(u1), module.n_out, module.d_out, dtype=u1.dtype), []
    for b in range(len(u1)):
        couplings.append([])
        for j in range(module.n_out):
            votes, agreement = [], []
            for k, group in enumerate(groups):
                vote = u2[b, k] @ w2[j, k]
                agreement.append(max(float((u1[b, m] @ w1[j, m]) @ vote) / math.sqrt(module.d_out) for m in group))
                votes.append(vote)
            weights = [math.exp(a - max(agreement)) for a in agreement]
            coupling = [w / sum(weights) for w in weights]
            s = sum(c * vote for c, vote in zip(coupling, votes, strict=True))
            norm = float(s.norm())
            v[b, j] = norm**2 / (1 + norm**2) * s / norm
            couplings[-1].append(coupling)
    return v, torch.tensor(couplings, dtype=u1.dtype)


def example(fine, coarse, shared, batch=2, d1=3, d2=3, n_out=4, d_out=5, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    module = CrossAgreementRouting(fine, d1, coarse, d2, n_out, d_out, shared).to(dtype)
    u1 = torch.randn(batch, fine[0] * fine[1], d1, dtype=dtype)
    u2 = torch.randn(batch, coarse[0] * coarse[1], d2, dtype=dtype)
    return module, u1, u2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("grids", [SQUARE, UNEVEN, RUNS, SAME, ((1, 24), (1, 4))])
def test_equals_the_loop(grids, shared):
    module, u1, u2 = example(*grids, shared)
    torch.testing.assert_close(module(u1, u2), loop(module, u1, u2)[0], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    coarse=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    window=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    rest=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dims=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    n_out=st.integers(1, 5),
    d_out=st.integers(1, 5),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_the_loop_for_any_shape(batch, coarse, window, rest, dims, n_out, d_out, shared, seed):
    fine = tuple(coarse[i] * window[i] + min(rest[i], coarse[i] - 1) for i in (0, 1))
    d1 = dims[1] if shared else dims[0]
    module, u1, u2 = example(fine, coarse, shared, batch, d1, dims[1], n_out, d_out, torch.float64, seed)
    v = module(u1, u2)
    assert v.shape == (batch, n_out, d_out)
    # The textbook squash of the loop has no epsilon, which shows in outputs shorter than about 1e-5.
    torch.testing.assert_close(v, loop(module, u1, u2)[0], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_couplings_are_those_of_the_loop_and_sum_to_one(shared):
    module, u1, u2 = example(*UNEVEN, shared)
    v, states = module(u1, u2), []
    assert torch.equal(module(u1, u2, states), v), "to look on changes nothing"
    (state,) = states
    fine, coarse = state.votes
    assert fine.shape == (6, 2, 4, 4, 5) and coarse.shape == (6, 2, 4, 5)
    assert state.fine_agreements.shape == (6, 2, 4, 4) and state.agreements.shape == (6, 2, 4)
    torch.testing.assert_close((fine * coarse[:, :, None]).sum(-1) / 5**0.5, state.fine_agreements)
    assert torch.equal(state.fine_agreements.amax(2), state.agreements) and torch.equal(state.output, v)
    assert (state.inputs, state.grids, state.axis) == (("fine", "coarse"), UNEVEN, 0)
    coupling = state.couplings.permute(1, 2, 0)  # [b, j, k]
    torch.testing.assert_close(coupling.sum(-1), torch.ones(2, 4))
    torch.testing.assert_close(coupling, loop(module, u1, u2)[1], rtol=1e-5, atol=1e-6)


def test_permuting_fine_capsules_inside_one_group_changes_nothing():
    module, u1, u2 = example(*SQUARE, shared=True)
    group = members(*SQUARE)[2]
    permuted = u1.clone()
    permuted[:, group] = u1[:, [group[i] for i in (3, 0, 2, 1)]]
    torch.testing.assert_close(module(permuted, u2), module(u1, u2))


def test_moving_a_fine_capsule_to_another_group_changes_the_output():
    module, u1, u2 = example(*SQUARE, shared=True)
    first, second = members(*SQUARE)[:2]
    moved = u1.clone()
    moved[:, first], moved[:, second] = u1[:, second], u1[:, first]
    assert (module(moved, u2) - module(u1, u2)).abs().max() > 1e-4


def test_left_over_fine_capsules_have_no_say():
    module, u1, u2 = example(*UNEVEN, shared=True)
    used = {i for group in members(*UNEVEN) for i in group}
    changed = u1.clone()
    changed[:, [i for i in range(35) if i not in used]] = 1e3
    assert len(used) == 24 and torch.equal(module(changed, u2), module(u1, u2))


@pytest.mark.parametrize("shared", [True, False])
def test_zero_capsules_give_zero_with_finite_gradients(shared):
    module, u1, u2 = example(*SQUARE, shared)
    u1, u2 = torch.zeros_like(u1).requires_grad_(), torch.zeros_like(u2).requires_grad_()
    v = module(u1, u2)
    v.sum().backward()
    assert (v == 0).all()
    assert all(t.grad.isfinite().all() for t in (u1, u2, *module.parameters()))


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_agree_with_finite_differences(shared):
    module, u1, u2 = example((2, 4), (1, 2), shared, d1=2, d2=2, n_out=2, d_out=3, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]

    def routed(u1, u2, *weights):
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (u1, u2))

    inputs = [t.detach().clone().requires_grad_() for t in (u1, u2, *module.parameters())]
    assert torch.autograd.gradcheck(routed, inputs)


def test_half_precision_capsules_are_compared_in_float32():
    module, u1, u2 = example(*SQUARE, shared=False, dtype=torch.bfloat16)
    v = module(u1, u2)
    assert v.dtype == torch.float32
    torch.testing.assert_close(v, loop(module.float(), u1.float(), u2.float())[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("d1", "d2"), [(8, 8), (16, 48)])
def test_vote_weights_start_with_deviation_one_over_the_root_of_the_input_dimension(d1, d2):
    torch.manual_seed(0)
    module = CrossAgreementRouting((8, 8), d1, (4, 4), d2, 16, 16, shared=False)
    for w, d in ((module.w1, d1), (module.w2, d2)):
        assert w.std().item() == pytest.approx(1 / math.sqrt(d), rel=0.02)
        assert abs(w.mean().item()) < 0.01


def test_sharing_needs_equal_dimensions():
    with pytest.raises(MspcapsError, match="3 and 4"):
        CrossAgreementRouting((2, 2), 3, (1, 1), 4, 2, 2, shared=True)


@pytest.mark.parametrize("kind", [CrossAgreementRouting, MeanAgreementRouting, SelfAgreementRouting])
@pytest.mark.parametrize("shared", [True, False])
def test_another_number_of_outputs_changes_nothing_else(kind, shared):
    module = kind(*UNEVEN[:1], 4 if shared else 3, UNEVEN[1], 4, 5, 6, shared)
    other = module.with_outputs(9)
    assert type(other) is kind and (other.fine, other.coarse, other.d_out) == (*UNEVEN, 6)
    shapes = [tuple(p.shape) for p in module.parameters()]
    assert [tuple(p.shape) for p in other.parameters()] == [(n, d, 9, e) for n, d, _, e in shapes]
