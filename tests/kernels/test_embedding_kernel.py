"""The kernels of PatchifyCaps against the module that they replace, in float64."""

import pytest
import torch
from kernel_errors import error
from torch import Tensor

from mspcaps.capsules import PatchifyCaps
from mspcaps.kernels.embedding import embed, supported

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SCALES = [  # (n, c, d) of every scale: T's, L's coarsest two, unusual ones
    [(64, 32, 8), (16, 64, 8), (4, 128, 16)],
    [(16, 256, 32), (4, 512, 64)],
    [(25, 7, 3), (9, 100, 33), (1, 16, 1)],
]
NAMES = ("project.weight", "project.bias", "position", "norm.weight", "norm.bias")


def modules(scales: list[tuple[int, int, int]]) -> list[PatchifyCaps]:
    """With positions, gains and shifts that matter."""
    layers = [PatchifyCaps(c, d, (1, n), 1) for n, c, d in scales]
    for module in layers:
        for p in (module.position, module.norm.weight, module.norm.bias):
            torch.nn.init.normal_(p, std=0.5)
    return layers


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("scales", SCALES)
def test_equals_the_module(scales: list[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> None:
    layers = modules(scales)
    params = [[m.get_parameter(name) for m in layers] for name in NAMES]
    for p in (*params[0], *params[2]):  # matrices live in the working precision
        p.data = p.data.to(dtype)
    averages = [torch.randn(3, n, c).to(dtype) for n, c, _ in scales]
    doubles = [module.double() for module in modules(scales)]
    for double, module in zip(doubles, layers, strict=True):
        double.load_state_dict({name: p.double() for name, p in module.state_dict().items()})
    exact_in = [u.double().requires_grad_() for u in averages]
    exact = [double.embed(u) for double, u in zip(doubles, exact_in, strict=True)]
    inputs = [u.to(device).requires_grad_() for u in averages]
    weights, biases, positions, gammas, betas = (
        [p.detach().to(device).requires_grad_() for p in kind] for kind in params
    )
    assert supported(inputs, [d for _, _, d in scales])
    out = embed(inputs, weights, biases, positions, gammas, betas)
    tolerance = TOLERANCE[dtype]
    assert all(u.dtype == dtype and error(u, e) < tolerance for u, e in zip(out, exact, strict=True))
    upstream = [torch.randn_like(e) for e in exact]
    leaves = [*inputs, *weights, *biases, *positions, *gammas, *betas]
    exact_inputs = [*exact_in, *[double.get_parameter(name) for name in NAMES for double in doubles]]
    grads = torch.autograd.grad(out, leaves, [g.to(device, dtype) for g in upstream])
    exact_grads = torch.autograd.grad(exact, exact_inputs, upstream)
    for g, e, x in zip(grads, exact_grads, leaves, strict=True):
        assert g.shape == x.shape and g.dtype == x.dtype
        # a single dimension is always normalised to zero: its gradient is only rounding
        assert error(g, e) < 3 * tolerance or (e.norm() < 1e-6 and g.norm() < 1e-2)


def test_an_unused_scale_gets_zero_gradients(device: torch.device) -> None:
    scales = SCALES[0]
    layers = modules(scales)
    inputs = [torch.randn(2, n, c, device=device, requires_grad=True) for n, c, _ in scales]
    lists = [[m.get_parameter(name).detach().to(device).requires_grad_() for m in layers] for name in NAMES]
    out = embed(inputs, *lists)
    (first, last) = torch.autograd.grad(out[0].sum() + out[1].square().sum(), [lists[0][2], lists[0][1]])
    assert not first.any() and last.any()


@pytest.mark.slow
def test_traces_whole_under_autocast(device: torch.device) -> None:
    """As in the training step: compiled as one graph, matrices in bf16, vectors in fp32."""
    layers = modules(SCALES[0])
    lists = [[m.get_parameter(name).detach().to(device) for m in layers] for name in NAMES]
    lists = [[p.bfloat16() if p.ndim == 2 else p for p in kind] for kind in lists]
    for kind in lists:
        for p in kind:
            p.requires_grad_()
    inputs = [torch.randn(2, n, c, device=device).bfloat16().requires_grad_() for n, c, _ in SCALES[0]]

    def loss(averages: list[Tensor]) -> Tensor:
        return sum(u.float().square().mean() for u in embed(averages, *lists))

    leaves = [*inputs, *[p for kind in lists for p in kind]]
    with torch.autocast(device.type, torch.bfloat16):
        plain = torch.autograd.grad(loss(inputs), leaves)
        whole = torch.compile(loss, backend="aot_eager", fullgraph=True)
        traced = torch.autograd.grad(whole(inputs), leaves)
    assert all(a.dtype == b.dtype and error(a, b.double().cpu()) < 1e-3 for a, b in zip(traced, plain, strict=True))
