"""The kernels of depthwise convolutions against PyTorch's, in float64."""

import os
import subprocess
import sys

import pytest
import torch
from kernel_errors import error
from torch import nn
from torch.nn import functional as F

from mspcaps.kernels.depthwise import supported
from mspcaps.kernels.fused import DepthwiseConv, faster_conv

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SHAPES = [  # b, c, h, w, k: those of LaCaps, then unusual ones, including maps smaller than their filters
    (2, 32, 8, 8, 5),
    (1, 96, 8, 8, 3),
    (3, 7, 5, 9, 5),
    (2, 3, 2, 3, 7),
    (1, 130, 1, 1, 3),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("b", "c", "h", "w", "k"), SHAPES)
def test_equals_the_convolution(
    b: int, c: int, h: int, w: int, k: int, dtype: torch.dtype, device: torch.device
) -> None:
    conv = nn.Conv2d(c, c, k, padding=k // 2, groups=c, bias=False).to(dtype)
    x, g = torch.randn(b, c, h, w).to(dtype), torch.randn(b, c, h, w).to(dtype)
    exact_in, exact_weight = x.double().requires_grad_(), conv.weight.detach().double().requires_grad_()
    exact = F.conv2d(exact_in, exact_weight, padding=k // 2, groups=c)
    leaf, twin = x.to(device).requires_grad_(), faster_conv(conv.to(device))
    assert isinstance(twin, DepthwiseConv) and twin.weight is conv.weight
    y = twin(leaf)
    assert y.shape == x.shape and y.dtype == dtype and error(y, exact) < TOLERANCE[dtype]
    exact_grads = torch.autograd.grad(exact, (exact_in, exact_weight), g.double())
    grads = torch.autograd.grad(y, (leaf, conv.weight), g.to(device))
    for a, e, t in zip(grads, exact_grads, (leaf, conv.weight), strict=True):
        assert a.shape == t.shape and a.dtype == dtype and error(a, e) < TOLERANCE[dtype]


def test_takes_what_autocast_leaves_in_fp32_and_any_layout(device: torch.device) -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False).to(device, torch.bfloat16)
    x = torch.randn(2, 8, 6, 4, device=device)
    y = faster_conv(conv)(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, faster_conv(conv)(x.to(memory_format=torch.channels_last)))


def test_other_convolutions_are_left_alone() -> None:
    kinds = (
        nn.Conv2d(8, 8, 3, padding=1, groups=8),  # with a bias
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False),
        nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.Conv2d(8, 8, 4, padding=2, groups=8, bias=False),
        nn.Conv2d(8, 8, (3, 5), padding=1, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False, padding_mode="reflect"),
    )
    assert all(faster_conv(conv) is conv for conv in kinds)
    assert not supported(torch.rand(1, 2, 3, 3, dtype=torch.float64))


HOPPER = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mspcaps.kernels.triton_kernels import depthwise, depthwise_filters

def build(kernel, warps, pointers, **constants):
    types = {**dict(zip(kernel.arg_names, pointers)), "M": "i32"}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(types))}
    source = ASTSource(kernel, signature, constants, aligned)
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    assert "ld.global.v4" in assembly, "16 bytes at a time"

shape = dict(H=32, W=32, C=32, K=5)
build(depthwise, 4, ["*bf16", "*bf16", "*bf16"], TRANSPOSED=True, RB=64, CB=32, **shape)
build(depthwise_filters, 8, ["*bf16", "*bf16", "*fp32"], KP=8, STEPS=20, RB=16, CB=32, **shape)
"""


@pytest.mark.slow
def test_compiles_for_hopper() -> None:
    """Triton's interpreter accepts more than its compiler, which can build for a GPU without having one."""
    pytest.importorskip("triton", reason="Triton is not installed")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", HOPPER], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
