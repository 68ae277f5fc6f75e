"""Depthwise convolutions with stride 1, forward and backward, on maps that are NHWC in memory.

cuDNN takes several times as long as reading and writing the maps would, above all for the gradient of the filters. Both
operators are opaque to torch.compile.
"""

from typing import Any

import torch
from torch import Tensor

from mspcaps.kernels.maps import PROGRAMS, power_of_two

CHANNELS = 64  # per tile: 128 bytes of bf16, one cache line


def supported(x: Tensor) -> bool:
    """Whether the kernels support a map [b, c, h, w] of this precision and size."""
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and 0 < x.numel() < 2**31


@torch.library.custom_op("mspcaps::depthwise", mutates_args=())
def depthwise(x: Tensor, filters: Tensor, transposed: bool) -> Tensor:
    """x [b, h, w, c], filters [k k, c] -> [b, h, w, c], padding k // 2; `transposed`: from the gradient of the output
    to that of the input."""
    from mspcaps.kernels.triton_kernels import depthwise as kernel

    b, h, w, c = x.shape
    y, cb = x.new_empty(x.shape), min(power_of_two(c), CHANNELS)
    rows, rb = b * h * w, 2048 // cb
    with torch.cuda.device_of(x):
        kernel[(-(-rows // rb), -(-c // cb))](
            x.contiguous(), filters.contiguous(), y, rows, H=h, W=w, C=c, K=side(filters), TRANSPOSED=transposed,
            RB=rb, CB=cb, num_warps=4,
        )  # fmt: skip
    return y


@depthwise.register_fake
def _(x: Tensor, filters: Tensor, transposed: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("mspcaps::depthwise_filters", mutates_args=())
def filter_gradient(x: Tensor, dy: Tensor, filters: Tensor) -> Tensor:
    """-> the gradient of the filters, accumulated in fp32 and returned in their precision."""
    from mspcaps.kernels.triton_kernels import depthwise_filters as kernel

    b, h, w, c = x.shape
    k, rows, cb = side(filters), b * h * w, min(power_of_two(c), CHANNELS // 2)
    rb, blocks = 512 // cb, -(-c // cb)
    programs = max(1, min(-(-rows // rb), 4 * PROGRAMS // (blocks * k)))
    total = filters.new_zeros(filters.shape, dtype=torch.float32)
    with torch.cuda.device_of(x):
        kernel[(programs, blocks, k)](
            x.contiguous(), dy.contiguous(), total, rows, H=h, W=w, C=c, K=k, KP=power_of_two(k),
            STEPS=-(-rows // (programs * rb)), RB=rb, CB=cb, num_warps=8,
        )  # fmt: skip
    return total.to(filters.dtype)


@filter_gradient.register_fake
def _(x: Tensor, dy: Tensor, filters: Tensor) -> Tensor:
    return filters.new_empty(filters.shape)


def side(filters: Tensor) -> int:
    return round(len(filters) ** 0.5)


def save(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def gradients(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    x, filters = ctx.saved_tensors
    return depthwise(dy, filters, True), filter_gradient(x, dy, filters), None


depthwise.register_autograd(gradients, setup_context=save)
