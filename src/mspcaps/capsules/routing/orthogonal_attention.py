"""Orthogonal sparse attention routing (Geng et al., "OrthCaps", CVPR 2024): one pass, orthogonal matrices, couplings
that may be zero.

    entmax    p[i] = max(0, x[i] - tau)^2 with x = z / 2 and tau such that p sums to one (1.5-entmax)
    matrix    W = product over i of (I - 2 b[i] b[i]^T / |b[i]|^2), orthogonal whatever b is
    simple    V = squash( entmax(U W^T U^T / sqrt(d)) U W^T )
    complete  v[j] = squash( sum over i of (entmax(Q[j] K[j]^T / sqrt(d)) V[j])[i] ), Q[j] = U WQ[j]^T, K and V alike
    classes   C[i,j] = entmax over j of sum over i' of <U[i,j], U[i',j]> / sqrt(e), v[j] = squash( sum over i of C U )

The paper's formula of entmax has another factor 1 / alpha; this is the usual one (Peters et al. 2019).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import at_least_fp32, squash, without_autocast
from mspcaps.capsules.votes import cast_votes

STEPS = 8  # of Newton's method: enough for a thousand outputs, without a sort or a synchronisation with the GPU


class Entmax(torch.autograd.Function):
    """Saves one tensor for the backward pass; the single operations would save ten."""

    generate_vmap_rule = True  # gradients per image need vmap

    @staticmethod
    def forward(z: Tensor) -> tuple[Tensor, Tensor]:
        x = z / 2
        x = x - x.amax(-1, keepdim=True)
        tau = torch.full_like(x[..., :1], -1.0)  # a lower bound: there the largest entry alone has p = 1
        for _ in range(STEPS):  # Newton's method on a convex function, from the left: never past the root
            above = (x - tau).clamp_min(0)
            tau = tau + (above.square().sum(-1, keepdim=True) - 1) / (2 * above.sum(-1, keepdim=True))
        support = (x > tau).to(x.dtype)  # is final now and gives tau in closed form
        count = support.sum(-1, keepdim=True)
        mean = (support * x).sum(-1, keepdim=True) / count
        spread = (support * (x - mean).square()).sum(-1, keepdim=True)
        tau = mean - ((1 - spread).clamp_min(0) / count).sqrt()
        root = support * (x - tau).clamp_min(0)
        return root.square(), root

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        """p sums to one, so tau changes by the mean of the changes of x, weighted by the square roots of p."""
        (root,) = ctx.saved_tensors
        mean = (grad * root).sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return root * (grad - mean)


def entmax(z: Tensor) -> Tensor:
    """1.5-entmax over the last axis: like softmax, but entries far below the largest become exactly zero."""
    return Entmax.apply(at_least_fp32(z))[0]


def householder(b: Tensor) -> Tensor:
    """Rows b [..., d, d] -> the product of the reflections that they define [..., d, d], in fp32 or better.

    A row of zeros, as pruning makes it, is the identity."""
    b = F.normalize(at_least_fp32(b), dim=-1)
    product = torch.eye(b.shape[-1], device=b.device, dtype=b.dtype) - 2 * b.unsqueeze(-1) * b.unsqueeze(-2)
    with without_autocast(b):
        while (count := product.shape[-3]) > 1:  # neighbours in pairs: [..., i, d, d] -> [..., i / 2, d, d]
            pairs = product[..., : count - 1 : 2, :, :] @ product[..., 1::2, :, :]
            product = torch.cat((pairs, product[..., count - 1 :, :, :]), -3) if count % 2 else pairs
    return product.squeeze(-3)


class SimplifiedOrthogonalRouting(nn.Module):
    """Capsules [..., n, d] -> [..., n, d]: each attends to all n and becomes a squashed mean of them."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.reflections = nn.Parameter(torch.randn(d, d))

    def forward(self, u: Tensor) -> Tensor:
        rotated = u @ householder(self.reflections).mT.to(u.dtype)  # [..., n, d]
        C = entmax(rotated @ u.to(rotated.dtype).mT / u.shape[-1] ** 0.5)  # [..., n, n], sums to one over the last
        return squash(C.to(rotated.dtype) @ rotated)


class OrthogonalAttentionRouting(nn.Module):
    """Capsules [..., n, d] -> [..., n_out, d]: each output capsule is a head with its own orthogonal matrices.

    LayerNorm on the input is not in the paper, but without it a stack of these does not train. It starts by giving
    capsules the length one, the most that squash allows: longer ones make attention so sharp that in a deep stack the
    slightest change of an image, or rounding to bf16, changes the gradient completely.
    """

    def __init__(self, d: int, n_out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        nn.init.constant_(self.norm.weight, d**-0.5)
        self.reflections = nn.Parameter(torch.randn(3, n_out, d, d))

    def forward(self, u: Tensor) -> Tensor:
        u = self.norm(u.to(self.norm.weight.dtype))
        query, key, value = householder(self.reflections).to(u.dtype)  # [j, d, d] each
        # Q K^T = U (WQ^T WK) U^T, and the rows of C V sum to (sum of the rows of C) U WV^T: neither K nor V is computed
        # for every capsule, nor are matrices copied for every position.
        Q = u @ (query.mT @ key).movedim(0, 1).flatten(1)  # [..., n, j d]
        Q = Q.unflatten(-1, (-1, u.shape[-1])).flatten(-3, -2)  # [..., n j, d]
        C = entmax(Q @ u.to(Q.dtype).mT / u.shape[-1] ** 0.5)  # [..., n j, n], sums to one over the last
        mean = C.unflatten(-2, (u.shape[-2], -1)).sum(-3).to(u.dtype) @ u  # [..., j, d]
        return squash(torch.einsum("...jd,jed->...je", mean, value.to(mean.dtype)))


class SparseAttentionRouting(RoutingBlock):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; entmax over the output capsules."""

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int) -> None:
        super().__init__(n_in=n_in, d_in=d_in, n_out=n_out, d_out=d_out)
        self.w = nn.Parameter(torch.randn(n_in, d_in, n_out, d_out) * (2 / (n_in * d_in)) ** 0.5)

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends its RoutingState to `states` if given."""
        U = cast_votes(u.transpose(0, 1), self.w)  # [i, b, j, e]
        A = (U * U.sum(0)).sum(-1) / U.shape[-1] ** 0.5  # [i, b, j]
        C = entmax(A)  # [i, b, j], sums to one over j
        v = squash((C.unsqueeze(-1) * U).sum(0))  # [b, j, e]
        if states is not None:
            states.append(RoutingState(self, (U,), A, C, axis=2, output=v))
        return v
