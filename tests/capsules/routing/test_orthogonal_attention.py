"""Orthogonal sparse attention routing against plain loops, and what its parts promise."""

import pytest
import torch
from torch import Tensor

from mspcaps.capsules import OrthogonalAttentionRouting, SimplifiedOrthogonalRouting, SparseAttentionRouting
from mspcaps.capsules.routing.orthogonal_attention import entmax, householder


def sorted_entmax(z: Tensor) -> Tensor:
    """One row [n], by the algorithm of Peters et al.: as many of the largest as their threshold allows."""
    x = (z - z.max()) / 2
    ordered = sorted(x.tolist(), reverse=True)
    for k in range(1, len(ordered) + 1):
        top = ordered[:k]
        mean = sum(top) / k
        spread = sum((value - mean) ** 2 for value in top)
        candidate = mean - max(0.0, (1 - spread) / k) ** 0.5
        if candidate <= ordered[k - 1]:
            tau = candidate
    return (x - tau).clamp(min=0) ** 2


def reflected(b: Tensor) -> Tensor:
    w = torch.eye(b.shape[1], dtype=b.dtype)
    for row in b:
        w = w @ (torch.eye(b.shape[1], dtype=b.dtype) - 2 * torch.outer(row, row) / (row @ row))
    return w


def short(s: Tensor) -> Tensor:
    return s * s.norm() / (1 + s.norm() ** 2)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 16, 300])
def test_entmax_equals_the_sorted_form(scale: float, n: int) -> None:
    z = scale * torch.randn(4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    p = entmax(z)
    torch.testing.assert_close(p, torch.stack([sorted_entmax(row) for row in z]), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64))
    if scale == 100 and n == 300:
        assert (p == 0).any(), "sparse"


def test_the_gradient_of_entmax_is_that_of_its_closed_form() -> None:
    z = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(2 * z), z)
    root = entmax(z[0]).sqrt().detach()
    (g,) = torch.autograd.grad(entmax(z[0])[2], z)
    torch.testing.assert_close(g[0], root * (torch.eye(7, dtype=torch.float64)[2] - root[2] / root.sum()))
    for flat in (torch.zeros(2, 5), torch.tensor([[0.0, -1e4, -1e4]])):
        entmax(flat.requires_grad_())[:, 0].sum().backward()
        assert flat.grad is not None and flat.grad.isfinite().all()


@pytest.mark.parametrize("d", [1, 2, 5, 16])
def test_householder_matrices_are_orthogonal(d: int) -> None:
    b = torch.randn(3, d, d, generator=torch.Generator().manual_seed(d))
    w = householder(b)
    torch.testing.assert_close(w @ w.mT, torch.eye(d).expand(3, d, d), rtol=0, atol=1e-5)
    torch.testing.assert_close(w, torch.stack([reflected(rows) for rows in b]), rtol=0, atol=1e-5)
    torch.testing.assert_close(householder(7 * b), w, rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(householder(b), w, rtol=0, atol=1e-6)


def test_a_pruned_reflection_is_the_identity() -> None:
    b = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    b[1] = 0
    b.requires_grad_()
    w = householder(b)
    torch.testing.assert_close(w, reflected(b[[0, 2]]))
    w[0, 0].backward()
    assert b.grad is not None and b.grad.isfinite().all()


def test_the_compiler_takes_householder_matrices_whole() -> None:
    """With neither a break in the graph nor bf16 in it."""
    b = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(householder, backend="aot_eager", fullgraph=True)(b)
    torch.testing.assert_close(compiled, householder(b), rtol=0, atol=1e-6)
    assert householder(b.to("meta")).shape == (2, 5, 5), "where there is no autocast at all"


def test_the_simplified_routing_equals_a_loop() -> None:
    torch.manual_seed(0)
    routing = SimplifiedOrthogonalRouting(4).double()
    u = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    w = reflected(routing.reflections)
    for x, got in zip(u.flatten(0, 1), routing(u).flatten(0, 1), strict=True):
        turned = [w @ capsule for capsule in x]
        for i in range(5):
            c = sorted_entmax(torch.stack([turned[i] @ x[m] / 2 for m in range(5)]))
            torch.testing.assert_close(got[i], short(sum(c[m] * turned[m] for m in range(5))))


def test_the_complete_routing_equals_a_loop() -> None:
    torch.manual_seed(0)
    routing = OrthogonalAttentionRouting(4, 3).double()
    torch.nn.init.normal_(routing.norm.weight)
    torch.nn.init.normal_(routing.norm.bias)
    u = torch.randn(2, 5, 4, dtype=torch.float64)
    out = routing(u)
    assert out.shape == (2, 3, 4)
    for b in range(2):
        deviation = (u[b].var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        x = (u[b] - u[b].mean(-1, keepdim=True)) / deviation * routing.norm.weight + routing.norm.bias
        for j in range(3):
            query, key, value = (reflected(routing.reflections[part, j]) for part in range(3))
            s = torch.zeros(4, dtype=torch.float64)
            for i in range(5):
                c = sorted_entmax(torch.stack([(query @ x[i]) @ (key @ x[m]) / 2 for m in range(5)]))
                s = s + sum(c[m] * (value @ x[m]) for m in range(5))
            torch.testing.assert_close(out[b, j], short(s))


def test_votes_start_with_the_deviation_of_he_over_all_that_a_class_sees() -> None:
    torch.manual_seed(0)
    assert SparseAttentionRouting(16, 8, 10, 16).w.std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.02)


def test_the_vote_for_the_classes_equals_a_loop() -> None:
    torch.manual_seed(0)
    routing = SparseAttentionRouting(3, 4, 5, 6).double()
    u = torch.randn(2, 3, 4, dtype=torch.float64)
    states: list = []
    out = routing(u, states)
    votes = [[u[:, i] @ routing.w[i, :, j] for j in range(5)] for i in range(3)]
    for b in range(2):
        couplings = []
        for i in range(3):
            scores = [sum(votes[i][j][b] @ votes[m][j][b] for m in range(3)) / 6**0.5 for j in range(5)]
            couplings.append(sorted_entmax(torch.stack(scores)))
        torch.testing.assert_close(states[0].couplings[:, b], torch.stack(couplings))
        for j in range(5):
            torch.testing.assert_close(out[b, j], short(sum(couplings[i][j] * votes[i][j][b] for i in range(3))))
    assert states[0].axis == 2 and states[0].output is out
    assert routing.with_outputs(2).w.shape == (3, 4, 2, 6)


@pytest.mark.parametrize(
    "routing",
    [SimplifiedOrthogonalRouting(4), OrthogonalAttentionRouting(4, 3), SparseAttentionRouting(3, 4, 2, 4)],
    ids=lambda routing: type(routing).__name__,
)
def test_gradients_at_zero_are_finite(routing: torch.nn.Module) -> None:
    u = torch.zeros(2, 3, 4, requires_grad=True)
    routing(u).sum().backward()
    assert u.grad is not None and u.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in routing.parameters())
