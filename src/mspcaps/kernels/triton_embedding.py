"""The two kernels of PatchifyCaps after its pooling. Import only where Triton is present.

A program owns RB rows of [b n, ...], capsules of one scale; c is walked over in chunks of CB, d is padded to DP.
Products take their operands in the precision of x and add up in fp32, everything else is fp32.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def product(a, b, WIDE: tl.constexpr):
    """a b in fp32. WIDE takes the operands in fp32 too: Triton's interpreter multiplies the bits of bf16 numbers."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def embed_forward(
    x, weight, bias, position, gamma, beta, out, normed, rstd, rows, eps,
    N: tl.constexpr, C: tl.constexpr, D: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr, DP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """h = x W^T + bias + position, normed = (h - mean) / sqrt(variance + eps), out = normed gamma + beta."""
    r, d = tl.program_id(0) * RB + tl.arange(0, RB), tl.arange(0, DP)
    real, used = r < rows, d < D
    h = tl.zeros([RB, DP], tl.float32)
    for c0 in tl.static_range(0, C, CB):
        c = c0 + tl.arange(0, CB)
        x_tile = tl.load(x + r[:, None] * C + c[None, :], mask=real[:, None] & (c < C)[None, :], other=0.0)
        w_tile = tl.load(weight + d[None, :] * C + c[:, None], mask=used[None, :] & (c < C)[:, None], other=0.0)
        h += product(x_tile, w_tile, WIDE)
    mask = real[:, None] & used[None, :]
    h += tl.load(position + (r % N)[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    h += tl.load(bias + d, mask=used, other=0.0).to(tl.float32)[None, :]
    h = tl.where(mask, h, 0.0)
    centred = tl.where(mask, h - tl.sum(h, axis=1)[:, None] / D, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps)
    n = centred * scale[:, None]
    at = r[:, None] * D + d[None, :]
    tl.store(normed + at, n, mask=mask)
    tl.store(rstd + r, scale, mask=real)
    u = n * tl.load(gamma + d, mask=used, other=0.0).to(tl.float32)[None, :]
    u += tl.load(beta + d, mask=used, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, u.to(out.dtype.element_ty), mask=mask)


@triton.jit
def embed_backward(
    du, x, weight, gamma, normed, rstd, dx, d_weight, d_position, d_bias, d_gamma, d_beta, rows,
    N: tl.constexpr, C: tl.constexpr, D: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr, DP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Writes dx and adds to the rest, which come as zeros in fp32."""
    r, d = tl.program_id(0) * RB + tl.arange(0, RB), tl.arange(0, DP)
    real, used = r < rows, d < D
    mask = real[:, None] & used[None, :]
    at = r[:, None] * D + d[None, :]
    g = tl.load(du + at, mask=mask, other=0.0).to(tl.float32)
    n = tl.load(normed + at, mask=mask, other=0.0)
    tl.atomic_add(d_beta + d, tl.sum(g, axis=0), mask=used, sem="relaxed")
    tl.atomic_add(d_gamma + d, tl.sum(g * n, axis=0), mask=used, sem="relaxed")
    g = g * tl.load(gamma + d, mask=used, other=0.0).to(tl.float32)[None, :]
    dh = g - tl.sum(g, axis=1)[:, None] / D - n * (tl.sum(g * n, axis=1)[:, None] / D)
    dh = tl.where(mask, dh * tl.load(rstd + r, mask=real, other=0.0)[:, None], 0.0)
    tl.atomic_add(d_bias + d, tl.sum(dh, axis=0), mask=used, sem="relaxed")
    tl.atomic_add(d_position + (r % N)[:, None] * D + d[None, :], dh, mask=mask, sem="relaxed")
    small = dh.to(x.dtype.element_ty)
    for c0 in tl.static_range(0, C, CB):
        c = c0 + tl.arange(0, CB)
        inside = real[:, None] & (c < C)[None, :]
        w_tile = tl.load(weight + d[:, None] * C + c[None, :], mask=used[:, None] & (c < C)[None, :], other=0.0)
        dx_tile = product(small, w_tile, WIDE)
        tl.store(dx + r[:, None] * C + c[None, :], dx_tile.to(dx.dtype.element_ty), mask=inside)
        x_tile = tl.load(x + r[:, None] * C + c[None, :], mask=inside, other=0.0)
        dw_tile = product(tl.trans(small), x_tile, WIDE)
        where = used[:, None] & (c < C)[None, :]
        tl.atomic_add(d_weight + d[:, None] * C + c[None, :], dw_tile, mask=where, sem="relaxed")
