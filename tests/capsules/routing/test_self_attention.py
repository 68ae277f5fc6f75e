"""Self-attention routing against the equations of Efficient-CapsNet, one pair of capsules at a time."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mspcaps.capsules import SelfAttentionRouting, States, exponential_squash


def loop(module: SelfAttentionRouting, u: Tensor) -> Tensor:
    n_in, _, n_out, d_out = module.w.shape
    w, prior = module.w.detach(), module.prior.detach()
    v = torch.zeros(len(u), n_out, d_out, dtype=u.dtype)
    for sample in range(len(u)):
        votes = [[u[sample, i] @ w[i, :, j] for j in range(n_out)] for i in range(n_in)]
        for i in range(n_in):
            agreements = [
                sum(float(votes[i][j] @ votes[other][j]) for other in range(n_in)) / math.sqrt(d_out)
                for j in range(n_out)
            ]
            total = sum(math.exp(a) for a in agreements)
            for j in range(n_out):
                v[sample, j] += (math.exp(agreements[j]) / total + float(prior[i, 0, j])) * votes[i][j]
        for j in range(n_out):
            norm = v[sample, j].norm()
            v[sample, j] *= (1 - math.exp(-norm)) / norm
    return v


@settings(deadline=None, max_examples=20)
@given(
    batch=st.integers(1, 3), n_in=st.integers(1, 5), d_in=st.integers(1, 4), n_out=st.integers(1, 4),
    d_out=st.integers(1, 4), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_equals_the_loop(batch: int, n_in: int, d_in: int, n_out: int, d_out: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = SelfAttentionRouting(n_in, d_in, n_out, d_out).double()
    torch.nn.init.normal_(module.prior)
    u = torch.randn(batch, n_in, d_in, dtype=torch.float64)
    torch.testing.assert_close(module(u), loop(module, u), rtol=1e-5, atol=1e-9)


def test_equals_the_loop_in_single_precision() -> None:
    torch.manual_seed(0)
    module, u = SelfAttentionRouting(16, 8, 10, 16), torch.randn(4, 16, 8) / 3
    torch.testing.assert_close(module(u), loop(module, u), rtol=1e-5, atol=1e-5)


def test_what_it_says_it_did() -> None:
    torch.manual_seed(0)
    module, u, states = SelfAttentionRouting(6, 4, 3, 5), torch.randn(2, 6, 4), States()
    torch.nn.init.normal_(module.prior)
    v = module(u, states)
    (state,) = states
    assert state.axis == 2 and torch.equal(state.output, v)
    torch.testing.assert_close(state.couplings.sum(2), torch.ones(6, 2))
    torch.testing.assert_close(state.couplings, state.agreements.softmax(2))
    weights = (state.couplings + module.prior).unsqueeze(-1)
    torch.testing.assert_close(exponential_squash((weights * state.votes[0]).sum(0)), v)
    assert module.with_outputs(7)(u).shape == (2, 7, 5)


def test_zero_capsules_give_zero_with_finite_gradients() -> None:
    module, u = SelfAttentionRouting(6, 4, 3, 5), torch.zeros(2, 6, 4, requires_grad=True)
    v = module(u)
    v.sum().backward()
    assert (v == 0).all() and u.grad is not None and u.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_squash_is_finite_in_every_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for scale in (0.0, 1e-4, 1.0, 1e3):
            s = (torch.ones(3, 5) * scale).to(dtype).requires_grad_()
            v = exponential_squash(s)
            v.sum().backward()
            assert s.grad is not None and s.grad.isfinite().all() and v.norm(dim=-1).max() <= 1 + 1e-6
