"""A 3x3 convolution with BatchNorm's sums taken on the way. Import only where Triton is present.

cuDNN is hard to beat from 128 channels on; below that its tiles are mostly empty. Maps are NHWC. A program owns BM
output pixels and BN output channels and walks over the nine taps and the input channels in chunks of BK.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def conv3x3(
    x, weight, y, shift, sums, squares, M,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, COUT: tl.constexpr,
    STRIDE: tl.constexpr, SUMS: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x [b, H, W, C], weight [COUT, 3, 3, C] -> y [M = b HO WO, COUT], padding 1. With SUMS adds sum (y - shift) and
    sum (y - shift)^2 over the pixels, of y as it is stored; a shift near the mean avoids cancellation."""
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    real, used = row < M, column < COUT
    b, top, left = row // (HO * WO), (row // WO % HO) * STRIDE - 1, (row % WO) * STRIDE - 1
    corner = ((b * H + top) * W + left) * C  # may lie outside, never read there
    k = tl.arange(0, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(9 * tl.cdiv(C, BK)):
        tap, c = step // tl.cdiv(C, BK), step % tl.cdiv(C, BK) * BK + k
        h, w = top + tap // 3, left + tap % 3
        inside = real & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at = (corner + (tap // 3 * W + tap % 3) * C)[:, None] + c[None, :]
        x_tile = tl.load(x + at, mask=inside[:, None] & (c < C)[None, :], other=0.0)
        at = column[None, :] * (9 * C) + (tap * C + c)[:, None]
        w_tile = tl.load(weight + at, mask=used[None, :] & (c < C)[:, None], other=0.0)
        if WIDE:  # Triton's interpreter would multiply the bits of bf16 numbers
            total += tl.dot(x_tile.to(tl.float32), w_tile.to(tl.float32), input_precision="ieee")
        else:
            total = tl.dot(x_tile, w_tile, total)
    out = total.to(y.dtype.element_ty)
    mask = real[:, None] & used[None, :]
    tl.store(y + row[:, None] * COUT + column[None, :], out, mask=mask)
    if SUMS:
        off = out.to(tl.float32) - tl.load(shift + column, mask=used, other=0.0)[None, :]
        off = tl.where(mask, off, 0.0)
        tl.atomic_add(sums + column, tl.sum(off, axis=0), mask=used, sem="relaxed")
        tl.atomic_add(squares + column, tl.sum(off * off, axis=0), mask=used, sem="relaxed")
