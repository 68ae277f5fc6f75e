"""Inverted dot-product attention routing against loops over places, capsules and matrices."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mspcaps.capsules import InvertedAttentionRouting, States


def loop(module: InvertedAttentionRouting, u: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """-> outputs [b, h, w, j, 16], couplings [i, b, j, h, w]."""
    (rows, columns), n, J = module.kernel, module.n_in, module.n_out
    h, w = module.out_grid(*u.shape[1:3])
    W = module.w.detach()  # [i, q, j, r]
    out = torch.zeros(len(u), h, w, J, 16, dtype=u.dtype)
    couplings = torch.zeros(rows * columns * n, len(u), J, h, w, dtype=u.dtype)
    for b in range(len(u)):
        for y in range(h):
            for x in range(w):
                s = torch.zeros(J, 4, 4, dtype=u.dtype)
                for cell in range(rows * columns):
                    place = module.stride * y + cell // columns, module.stride * x + cell % columns
                    for t in range(n):
                        i = cell * n + t
                        votes = [u[b, place[0], place[1], t].view(4, 4) @ W[i, :, j] for j in range(J)]
                        if v is None:
                            c = torch.full((J,), 1 / J, dtype=u.dtype)
                        else:
                            parents = v[b, y, x].view(J, 4, 4)
                            c = torch.stack([(parents[j] * votes[j]).sum() / 4 for j in range(J)]).softmax(0)
                        couplings[i, b, :, y, x] = c
                        s += torch.stack([c[j] * votes[j] for j in range(J)])
                out[b, y, x] = module.norm(s.view(J, 16)).detach()
    return out, couplings


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [((3, 3), 2, (5, 7)), ((3, 3), 1, (3, 4)), ((2, 3), 1, (2, 3)), ((3, 3), 2, (4, 4))]
)
def test_equals_the_loop(kernel: tuple[int, int], stride: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    module = InvertedAttentionRouting(2, 3, kernel, stride).double()
    torch.nn.init.normal_(module.w)
    torch.nn.init.normal_(module.norm.weight)
    torch.nn.init.normal_(module.norm.bias)
    u = torch.randn(2, *size, 2, 16, dtype=torch.float64)
    v, _ = loop(module, u, None)
    torch.testing.assert_close(module(u), v)
    better, C = loop(module, u, v)
    states: States = []
    for found in (module(u, v), module(u, v, states), torch.no_grad()(module)(u, v)):
        torch.testing.assert_close(found, better)
    (state,) = states
    single = v.shape[1:3] == (1, 1)
    torch.testing.assert_close(state.couplings, C[..., 0, 0] if single else C)
    torch.testing.assert_close(state.couplings, state.agreements.softmax(state.axis))
    assert len(state.votes) == int(single)
    if single:
        s = (state.couplings[..., None] * state.votes[0]).sum(0)  # [b, j, e]
        torch.testing.assert_close(module.norm(s), state.output)


def test_gradients_agree_with_finite_differences_and_are_finite_at_zero() -> None:
    torch.manual_seed(0)
    module = InvertedAttentionRouting(1, 2, (2, 2)).double()
    u = torch.randn(1, 3, 3, 1, 16, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 2, 2, 2, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, v: module(u, v), (u, v), fast_mode=True)
    zero = torch.zeros(1, 3, 3, 1, 16, dtype=torch.float64, requires_grad=True)
    module(zero, module(zero)).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (zero, *module.parameters()))


class Largest(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor):
                self.numel = max(self.numel, t.numel())
        return out


def test_the_votes_of_a_window_are_never_there_together() -> None:
    """Of one cell of the kernel at most, forwards and backwards, and none of them is kept in between."""
    module, b = InvertedAttentionRouting(8, 8, (3, 3), stride=2), 2
    u = torch.randn(b, 11, 11, 8, 16, requires_grad=True)
    one_cell = b * 5 * 5 * 8 * 8 * 16
    kept: list[int] = []
    with Largest() as largest:
        v = module(u)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            out = module(u, v)
        out.sum().backward()
    assert largest.numel == one_cell and max(kept) < one_cell
