"""The backbone operator against the modules of the model in float64."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from kernel_errors import error
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.kernels.backbone import backbone, supported
from mspcaps.kernels.maps import narrow
from mspcaps.models.layers import ConvBN
from mspcaps.models.mspcaps import ResidualBlock

Rounding = Callable[[Tensor], Tensor]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def build(chans: list[int], depth: int, dtype: torch.dtype, device: torch.device) -> nn.ModuleList:
    """Blocks in float64 whose matrices the precision holds exactly, with vectors that differ from their defaults."""
    blocks = nn.ModuleList(
        ResidualBlock(i, o, depth, stride=1 if n == 0 else 2)
        for n, (i, o) in enumerate(pairwise(chans))
    )  # fmt: skip
    for name, t in blocks.state_dict().items():
        if "bn" in name:
            t.copy_(torch.rand_like(t) + 0.5 if "weight" in name or "var" in name else 0.3 * torch.randn_like(t))
        t.copy_(t.to(dtype if t.ndim == 4 else torch.float32))
    return blocks.to(device, torch.float64)


def rounded(x: Tensor) -> Tensor:
    """Rounded to bf16 as PyTorch does."""
    return x.bfloat16().double()


def stored(x: Tensor) -> Tensor:
    """Rounded to bf16 as a kernel does; Triton's interpreter truncates the mantissa, a GPU rounds it."""
    return rounded(x) if x.is_cuda else (x.float().view(torch.int32) & -65536).view(torch.float32).double()


class Keep(torch.autograd.Function):
    """Rounds a map and its gradient as storing them in bf16 does. Without it the reference would differ in the signs of
    rectified values near zero, which says nothing about the kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Rounding, back: Rounding) -> Tensor:
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(g), None, None


def kept_in_bf16(layer: ConvBN, x: Tensor, shortcut: bool, first: bool) -> Tensor:
    """One layer, with every map rounded as its maker does: cuDNN, or our own kernel."""
    ours = narrow(layer.conv.weight) and not first
    forth, back = stored if ours else rounded, stored if ours and layer.conv.stride == (1, 1) else rounded
    y = Keep.apply(layer.conv(Keep.apply(x, Tensor.clone, back)), forth, stored)
    return Keep.apply(F.relu(layer.bn(y) + x if shortcut else layer.bn(y)), stored, stored)


def reference(blocks: nn.ModuleList, x: Tensor, pools: list[bool], patch: int, dtype: torch.dtype) -> list[Tensor]:
    out = []
    for block, pool in zip(blocks, pools, strict=True):
        if dtype == torch.bfloat16:
            for i, layer in enumerate(layers(nn.ModuleList([block]))):
                x = kept_in_bf16(layer, x, shortcut=i > 0, first=i == 0 and block is blocks[0])
        else:
            x = block(x)
        if pool:
            out.append(F.avg_pool2d(x, patch).permute(0, 2, 3, 1).flatten(1, 2))
    return out


def layers(blocks: nn.ModuleList) -> list[ConvBN]:
    return [layer for block in blocks for layer in (block.first, *block.rest)]


def arguments(blocks: nn.ModuleList, scales: list[bool], dtype: torch.dtype) -> dict[str, list]:
    """Leaves in the precision of the kernels: matrices in `dtype`, vectors in fp32."""
    convs = layers(blocks)
    ends = [end for block, scale in zip(blocks, scales, strict=True) for end in [False] * len(block.rest) + [scale]]
    memory_format = torch.channels_last
    return {
        "weights": [c.conv.weight.detach().to(dtype, memory_format=memory_format).requires_grad_() for c in convs],
        "gammas": [c.bn.weight.detach().float().requires_grad_() for c in convs],
        "betas": [c.bn.bias.detach().float().requires_grad_() for c in convs],
        "running_means": [c.bn.running_mean.float() for c in convs],
        "running_vars": [c.bn.running_var.float() for c in convs],
        "strides": [c.conv.stride[0] for c in convs],
        "shortcuts": [i > 0 for block in blocks for i in range(1 + len(block.rest))],
        "pools": ends,
    }


CASES = [  # chans, depth, image, patch, scales
    ([3, 8, 16, 8], 2, (12, 12), 2, [True, True, True]),
    ([1, 5, 12], 3, (9, 7), 3, [True, True]),
    ([4, 16, 24], 1, (5, 6), 2, [False, True]),
    ([6, 33], 2, (7, 5), 2, [True]),
    ([3, 16, 40, 24], 2, (9, 7), 2, [True, True, True]),  # narrow enough for our own convolutions
    ([3, 128, 136], 2, (5, 6), 2, [True, True]),  # too wide for our own
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES)
def test_outputs_gradients_and_running_statistics(case: tuple, dtype: torch.dtype, device: torch.device) -> None:
    chans, depth, size, patch, scales = case
    blocks = build(chans, depth, dtype, device)
    args = arguments(blocks, scales, dtype)
    x = (torch.randn(4, chans[0], *size) + 0.5).to(device, dtype).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    assert supported(x, [len(w) for w in args["weights"]], args["strides"], args["pools"], patch)
    double = x.detach().double().requires_grad_()
    out, expected = backbone(x, patch=patch, **args), reference(blocks, double, scales, patch, dtype)
    dv = [torch.randn_like(e).to(dtype) for e in expected]
    leaves = [x, *args["weights"], *args["gammas"], *args["betas"]]
    exact = [double, *(c.conv.weight for c in layers(blocks))]
    exact += [*(c.bn.weight for c in layers(blocks)), *(c.bn.bias for c in layers(blocks))]
    grads = torch.autograd.grad(out, leaves, dv)
    exact_grads = torch.autograd.grad(expected, exact, [d.double() for d in dv])
    for o, e in zip(out, expected, strict=True):
        assert o.dtype == dtype and o.shape == e.shape and error(o, e) < TOLERANCE[dtype]
    for leaf, g, e in zip(leaves, grads, exact_grads, strict=True):
        # Through many bf16 layers a few rectified values near zero still change sign.
        most = 0.2 if dtype == torch.bfloat16 and len(args["weights"]) > 2 else TOLERANCE[dtype]
        assert g.dtype == leaf.dtype and error(g, e) < most
    for layer, mean, var in zip(layers(blocks), args["running_means"], args["running_vars"], strict=True):
        assert error(mean, layer.bn.running_mean.cpu()) < TOLERANCE[dtype]
        assert error(var, layer.bn.running_var.cpu()) < TOLERANCE[dtype]


@pytest.mark.slow
def test_traces_whole_and_updates_running_statistics(device: torch.device) -> None:
    blocks = build([3, 8, 8], 2, torch.float32, device)
    x = torch.randn(2, 3, 8, 8, device=device)

    def loss(x: Tensor, args: dict) -> Tensor:
        return sum(o.square().sum() for o in backbone(2 * x, patch=2, **args))

    results = []
    for run in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        args = arguments(blocks, [True, True], torch.float32)
        leaves = [*args["weights"], *args["gammas"], *args["betas"]]
        value = run(x, args)
        grads = torch.autograd.grad(value, leaves)
        results.append([value, *grads, *args["running_means"], *args["running_vars"]])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b)


def test_sums_survive_a_large_mean(device: torch.device) -> None:
    """The variance is summed around a sample: sums of squares around zero would lose it in fp32."""
    blocks = build([1, 4], 1, torch.float32, device)
    args = arguments(blocks, [True], torch.float32)
    x = (torch.randn(4, 1, 6, 6) + 1000).to(device)
    inner = F.conv2d(x.double(), args["weights"][0].double(), padding=1)
    backbone(x, patch=2, **{**args, "weights": [w.detach() for w in args["weights"]]})
    y = (args["running_vars"][0] - 0.9 * blocks[0].first.bn.running_var) / 0.1
    assert error(y, inner.var((0, 2, 3)).cpu()) < 1e-3


def test_refuses_what_does_not_fit() -> None:
    x = torch.zeros(2, 3, 8, 8)
    assert supported(x, [8], [1], [True], 2)
    assert not supported(x.double(), [8], [1], [True], 2)
    assert not supported(x, [8, 8], [2, 2], [True, True], 4)
    assert not supported(x[:1, :, :1, :1], [8], [1], [False], 1)
