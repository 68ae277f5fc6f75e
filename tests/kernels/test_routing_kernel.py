"""The routing kernels against the module they stand for, in float64."""

import pytest
import torch
from kernel_errors import error
from torch import Tensor

from mspcaps.capsules import CrossAgreementRouting
from mspcaps.capsules.squash import squash
from mspcaps.kernels.routing import blocks, cross_agreement, cross_agreement_pair, supported

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SIZES = [(16, 4, 16, 16), (4, 4, 10, 32), (25, 4, 3, 16), (4, 6, 10, 24), (64, 4, 5, 16), (1, 1, 1, 1), (7, 3, 5, 33)]


def reference(fine: Tensor, coarse: Tensor) -> Tensor:
    """What the module does after its votes."""
    agreement = (fine * coarse.unsqueeze(2)).sum(-1) / coarse.shape[-1] ** 0.5
    return squash((agreement.amax(2).softmax(0).unsqueeze(-1) * coarse).sum(0))


def random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal values that the precision holds exactly, so that only the kernel's own error is measured."""
    return torch.randn(*shape).to(device, dtype).requires_grad_()


def check(out: Tensor, expected: Tensor, inputs: list[Tensor], doubles: list[Tensor], dtype: torch.dtype) -> None:
    assert out.dtype == torch.float32 and error(out, expected) < 1e-5
    dv = torch.randn_like(expected)
    grads = torch.autograd.grad(out, inputs, dv.to(out))
    for g, exact, x in zip(grads, torch.autograd.grad(expected, doubles, dv), inputs, strict=True):
        assert g.shape == x.shape and g.dtype == dtype
        # softmax over one capsule: the fine votes get no gradient but rounding
        assert error(g, exact) < TOLERANCE[dtype] or (exact.norm() == 0 and g.norm() < 1e-6)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("sizes", SIZES)
def test_shared_votes(sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    k, m, j, e = sizes
    assert supported(k, m, j, e, dtype)
    votes = random(k, 3, m + 1, j, e, dtype=dtype, device=device)
    double = votes.detach().cpu().double().requires_grad_()
    expected = reference(double[:, :, :m], double[:, :, m])
    check(cross_agreement(votes), expected, [votes], [double], dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("sizes", SIZES)
def test_separate_votes(sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    k, m, j, e = sizes
    fine = random(k, m, 2, j, e, dtype=dtype, device=device)
    coarse = random(k, 2, j, e, dtype=dtype, device=device)
    doubles = [t.detach().cpu().double().requires_grad_() for t in (fine, coarse)]
    out = cross_agreement_pair(fine.transpose(1, 2), coarse)
    check(out, reference(doubles[0].transpose(1, 2), doubles[1]), [fine, coarse], doubles, dtype)


def test_more_coarse_capsules_than_registers_hold(device: torch.device) -> None:
    k, m, j, e = 150, 2, 1, 256
    assert blocks(k, j, e)[0] < k
    votes = random(k, 1, m + 1, j, e, dtype=torch.float32, device=device)
    double = votes.detach().cpu().double().requires_grad_()
    check(cross_agreement(votes), reference(double[:, :, :m], double[:, :, m]), [votes], [double], torch.float32)


def test_agrees_with_the_module(device: torch.device) -> None:
    for shared in (True, False):
        module = CrossAgreementRouting((4, 4), 8, (2, 2), 8, n_out=6, d_out=16, shared=shared).to(device)
        u1, u2 = torch.randn(2, 16, 8, device=device), torch.randn(2, 4, 8, device=device)
        expected = module(u1, u2)
        fine, coarse = module.votes(u1, u2)
        assert torch.allclose(cross_agreement_pair(fine, coarse), expected, atol=1e-6)
        if shared:
            votes = torch.cat([fine, coarse.unsqueeze(2)], 2)
            assert torch.allclose(cross_agreement(votes), expected, atol=1e-6)


def test_ties_share_the_gradient_as_amax_does(device: torch.device) -> None:
    fine = torch.randn(5, 2, 4, 3, 16, dtype=torch.float64)
    fine[:, :, 2] = fine[:, :, 0]
    fine[:3, :, 1] = fine[:3, :, 0]
    doubles = [fine.requires_grad_(), torch.randn(5, 2, 3, 16, dtype=torch.float64).requires_grad_()]
    with torch.no_grad():
        doubles[1] = (doubles[1] + 2 * doubles[0][:, :, 0]).float().double()  # the tie is the maximum
        doubles[0].copy_(doubles[0].float())
    doubles = [t.detach().requires_grad_() for t in doubles]
    singles = [t.detach().to(device, torch.float32).requires_grad_() for t in doubles]
    check(cross_agreement_pair(*singles), reference(*doubles), singles, doubles, torch.float32)


def test_zero_votes_have_finite_gradients(device: torch.device) -> None:
    votes = torch.zeros(4, 2, 3, 5, 8, device=device, requires_grad=True)
    out = cross_agreement(votes)
    (g,) = torch.autograd.grad(out.sum(), votes)
    assert out.isfinite().all() and g.isfinite().all()


def test_traces_whole_and_takes_odd_strides(device: torch.device) -> None:
    votes = torch.randn(4, 2, 8, 5, 4, device=device, requires_grad=True)  # e is not the last axis in memory

    def loss(v: Tensor) -> Tensor:
        return cross_agreement(v.transpose(2, 4)).sum(-1).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(loss(votes), votes)
    (g,) = torch.autograd.grad(compiled(votes), votes)
    assert torch.allclose(g, expected)
    torch.library.opcheck(torch.ops.mspcaps.cross_agreement.default, (votes.transpose(2, 4),))


def test_refuses_what_does_not_fit() -> None:
    assert not supported(4, 40, 5, 8, torch.float32)
    assert not supported(4, 4, 5, 4096, torch.float32)
    assert not supported(4, 4, 5, 8, torch.float64)
