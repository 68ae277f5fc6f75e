"""3x3 convolutions of few channels, forward, with BatchNorm's sums taken on the way."""

import torch
from torch import Tensor

from mspcaps.kernels import power_of_two

NARROW = 96  # channels up to which ours is taken; cuDNN is hard to beat beyond


def narrow(weight: Tensor) -> bool:
    """Whether a convolution [o, c, 3, 3] is one of ours: tensor cores want 16 channels on every side."""
    return min(weight.shape[:2]) >= 16 and max(weight.shape[:2]) <= NARROW


def narrow_conv(
    x: Tensor, weight: Tensor, stride: int, shift: Tensor | None = None, sums: Tensor | None = None
) -> Tensor:
    """x [b, h, w, c], weight [o, c, 3, 3] in channels_last -> [b, ho, wo, o], padding 1.

    With `shift` [o] and `sums` [2, o] adds sum (y - shift) and sum (y - shift)^2 over the pixels.
    """
    from mspcaps.kernels.triton_conv import conv3x3

    b, h, w, c = x.shape
    o, ho, wo = len(weight), -(-h // stride), -(-w // stride)
    y = x.new_empty(b, ho, wo, o)
    rows = b * ho * wo
    bm = 128 if rows >= 128 * 264 else 64
    bn, bk = tile(o), min(64, tile(c))
    counted = (shift, *sums) if sums is not None else (None, None, None)
    conv3x3[(-(-rows // bm), 1)](
        x, weight.permute(0, 2, 3, 1).contiguous(), y, *counted, rows,
        H=h, W=w, HO=ho, WO=wo, C=c, COUT=o, STRIDE=stride, SUMS=sums is not None,
        WIDE=x.dtype == torch.float32 or not x.is_cuda,
        BM=bm, BN=bn, BK=bk, num_warps=8 if bm * bn >= 16384 else 4, num_stages=3,
    )  # fmt: skip
    return y


def tile(channels: int) -> int:
    return max(16, power_of_two(channels))
