"""Dynamic routing by 3D convolution against loops over types and places."""

import math

import pytest
import torch
from torch.nn import functional as F

from mspcaps.capsules import DynamicRouting3D, States


def loop(module: DynamicRouting3D, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-> output [b, j, e, h, w], last couplings [b, i, j, h, w]; the votes by a 3D convolution, as the authors do."""
    b, n, d, h, w = u.shape
    J, E = module.n_out, module.d_out
    kernel = module.w.detach()[:, None]  # [j e, 1, d, 3, 3]
    V = F.conv3d(u.reshape(b, 1, n * d, h, w), kernel, stride=(d, 1, 1), padding=(0, 1, 1))  # [b, j e, i, h, w]
    V = V.view(b, J, E, n, h, w)
    v, C = torch.zeros(b, J, E, h, w, dtype=u.dtype), torch.zeros(b, n, J, h, w, dtype=u.dtype)
    logits = torch.zeros_like(C)
    places = [(y, x) for y in range(h) for x in range(w)]
    for _ in range(module.iterations):
        for a in range(b):
            for i in range(n):
                total = sum(math.exp(logits[a, i, j, y, x]) for j in range(J) for y, x in places)
                for j in range(J):
                    for y, x in places:
                        C[a, i, j, y, x] = math.exp(logits[a, i, j, y, x]) / total
            for j in range(J):
                s = sum(C[a, i, j] * V[a, j, :, i] for i in range(n)) + module.bias.detach()[j]  # [e, h, w]
                if module.joint:
                    norm = s.norm()
                    v[a, j] = s * norm / (1 + norm**2)
                else:
                    for y, x in places:
                        norm = s[:, y, x].norm()
                        v[a, j, :, y, x] = s[:, y, x] * norm / (1 + norm**2)
        used = C.clone()
        for i in range(n):
            logits[:, i] += (V[:, :, :, i] * v).sum(2)
    return v, used


@pytest.mark.parametrize(("iterations", "joint"), [(1, True), (3, True), (3, False)])
def test_equals_the_loop(iterations: int, joint: bool) -> None:
    torch.manual_seed(iterations)
    module = DynamicRouting3D(3, 4, 2, iterations, joint).double()
    torch.nn.init.normal_(module.bias)
    u = torch.randn(2, 5, 3, 2, 3, dtype=torch.float64)
    v, C = loop(module, u)
    states: States = []
    torch.testing.assert_close(module(u, states), v, rtol=1e-6, atol=1e-9)
    (state,) = states
    torch.testing.assert_close(state.couplings, C.transpose(0, 1).flatten(2))
    torch.testing.assert_close(state.couplings.sum(state.axis), torch.ones(5, 2, dtype=torch.float64))
    s = (state.couplings[..., None] * state.votes[0]).sum(0)  # [b, j h w, e]
    s = s.unflatten(1, (4, 2, 3)).movedim(-1, 2) + module.bias
    norm = s.flatten(2).norm(dim=2)[..., None, None, None] if joint else s.norm(dim=2, keepdim=True)
    torch.testing.assert_close(state.output, (s * norm / (1 + norm**2)).movedim(2, -1).flatten(1, 3))


def test_gradients_at_zero_are_finite() -> None:
    module, u = DynamicRouting3D(3, 4, 2), torch.zeros(2, 5, 3, 2, 3, requires_grad=True)
    torch.nn.init.zeros_(module.bias)
    module(u).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (u, *module.parameters()))
