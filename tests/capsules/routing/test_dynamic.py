"""Dynamic routing against Procedure 1 of Sabour, Frosst and Hinton, one capsule at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules import DynamicRouting


def squash(s):
    norm = s.norm()
    return norm**2 / (1 + norm**2) * s / norm


def loop(module, u):
    n_in, _, n_out, d_out = module.w.shape
    v = torch.zeros(len(u), n_out, d_out, dtype=u.dtype)
    for sample in range(len(u)):
        votes = [[u[sample, i] @ module.w.detach()[i, :, j] for j in range(n_out)] for i in range(n_in)]
        logits = [[0.0] * n_out for _ in range(n_in)]
        for iteration in range(module.iterations):
            couplings = []
            for row in logits:
                weights = [math.exp(x) for x in row]
                total = sum(weights) + (math.exp(0) if module.leaky else 0)
                couplings.append([w / total for w in weights])
                assert sum(couplings[-1]) < 1 if module.leaky else sum(couplings[-1]) == pytest.approx(1)
            for j in range(n_out):
                v[sample, j] = squash(sum(couplings[i][j] * votes[i][j] for i in range(n_in)))
            if iteration < module.iterations - 1:
                for i in range(n_in):
                    for j in range(n_out):
                        logits[i][j] += float(votes[i][j] @ v[sample, j])
    return v


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    n_in=st.integers(1, 5),
    d_in=st.integers(1, 4),
    n_out=st.integers(1, 4),
    d_out=st.integers(1, 4),
    iterations=st.integers(1, 4),
    leaky=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_the_loop(batch, n_in, d_in, n_out, d_out, iterations, leaky, seed):
    torch.manual_seed(seed)
    module = DynamicRouting(n_in, d_in, n_out, d_out, iterations, leaky=leaky).double()
    u = torch.randn(batch, n_in, d_in, dtype=torch.float64)
    v = module(u)
    assert v.shape == (batch, n_out, d_out)
    torch.testing.assert_close(v, loop(module, u), rtol=1e-5, atol=1e-9)


def test_equals_the_loop_in_single_precision():
    torch.manual_seed(0)
    module = DynamicRouting(12, 8, 10, 16)
    u = torch.randn(4, 12, 8)
    torch.testing.assert_close(module(u), loop(module, u), rtol=1e-5, atol=1e-5)


def test_couplings_sum_to_one_over_the_outputs():
    # When every vote of an input capsule is the same for all outputs, so are all outputs, whatever the iterations:
    # each gets 1 / n_out of every vote. A softmax over the input capsules would give the mean of the votes instead.
    module = DynamicRouting(5, 3, 4, 6)
    with torch.no_grad():
        module.w.copy_(module.w[:, :, :1].expand_as(module.w).clone())
    u = torch.randn(2, 5, 3)
    total = torch.einsum("bid,ide->be", u, module.w[:, :, 0])
    expected = torch.stack([squash(row / 4) for row in total]).unsqueeze(1).expand(2, 4, 6)
    torch.testing.assert_close(module(u), expected)


def test_one_iteration_differs_from_three():
    torch.manual_seed(0)
    three, u = DynamicRouting(6, 4, 3, 5), torch.randn(2, 6, 4)
    assert three.iterations == 3, "as in the paper of dynamic routing"
    one = DynamicRouting(6, 4, 3, 5, iterations=1)
    one.load_state_dict(three.state_dict())
    assert (one(u) - three(u)).abs().max() > 1e-3


def test_logits_are_kept_per_sample():
    torch.manual_seed(0)
    module, u = DynamicRouting(6, 4, 3, 5), torch.randn(3, 6, 4)
    torch.testing.assert_close(module(u)[:1], module(u[:1]))


def test_zero_capsules_give_zero_with_finite_gradients():
    module, u = DynamicRouting(6, 4, 3, 5), torch.zeros(2, 6, 4, requires_grad=True)
    v = module(u)
    v.sum().backward()
    assert (v == 0).all() and u.grad.isfinite().all() and module.w.grad.isfinite().all()


def test_gradients_agree_with_finite_differences():
    torch.manual_seed(0)
    module = DynamicRouting(3, 2, 2, 3).double()
    u = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    w = module.w.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda u, w: torch.func.functional_call(module, {"w": w}, (u,)), (u, w))


def test_vote_weights_start_with_deviation_one_over_the_root_of_the_input_dimension():
    torch.manual_seed(0)
    assert DynamicRouting(64, 48, 32, 8).w.std().item() == pytest.approx(1 / math.sqrt(48), rel=0.01)


def test_the_state_is_that_of_the_last_iteration():
    torch.manual_seed(0)
    module, u, states = DynamicRouting(6, 4, 3, 5).double(), torch.randn(2, 6, 4, dtype=torch.float64), []
    v = module(u, states)
    (state,) = states
    votes = torch.einsum("bid,idje->ibje", u, module.w)
    torch.testing.assert_close(state.votes[0], votes)
    torch.testing.assert_close(state.couplings.sum(state.axis), torch.ones(6, 2, dtype=torch.float64))
    torch.testing.assert_close(state.couplings, state.agreements.softmax(2))
    total = torch.einsum("ibj,ibje->bje", state.couplings, votes)
    torch.testing.assert_close(v, torch.stack([torch.stack([squash(s) for s in row]) for row in total]))
    assert module.with_outputs(7)(u.float()).shape == (2, 7, 5) and module.with_outputs(7).iterations == 3


def test_a_bias_is_added_before_squash_in_every_iteration():
    torch.manual_seed(0)
    module, u = DynamicRouting(4, 3, 2, 5, bias=True).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(module(u), loop(module, u))  # it starts as nothing
    torch.nn.init.normal_(module.bias)
    torch.testing.assert_close(module(u), loop_with_bias(module, u))
    other = module.with_outputs(7)
    assert (
        other.bias.shape == (7, 5) and not other.leaky and DynamicRouting(4, 3, 2, 5, leaky=True).with_outputs(7).leaky
    )
    assert DynamicRouting(4, 3, 2, 5).with_outputs(7).bias is None


def loop_with_bias(module, u):
    votes = torch.einsum("bid,idje->ibje", u, module.w)
    logits = torch.zeros(votes.shape[:3], dtype=u.dtype)
    for _ in range(module.iterations):
        s = sum(c[..., None] * vote for c, vote in zip(logits.softmax(-1), votes, strict=True)) + module.bias
        v = torch.stack([torch.stack([squash(capsule) for capsule in image]) for image in s])
        logits = logits + (votes * v).sum(-1)
    return v
