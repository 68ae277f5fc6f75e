"""All Triton code: kernels of the MSRB backbone, of PatchifyCaps and of depthwise convolutions. Imported only on use.

Maps are NHWC in memory and treated as rows [M = b h w, C]; a program works in fp32 on tiles [RB, CB] of rows and
channels. Sums over the rows are accumulated atomically, a few hundred additions per channel, for the next kernel to
use. Adding partial sums in a last program would make results repeatable bit for bit, but was slower.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def batch_statistics(
    y, sums, squares, M,
    C: tl.constexpr, PROGRAMS: tl.constexpr, STEPS: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """y [M, C] -> adds sum (y - y[0]) and sum (y - y[0])^2 to [C]: any value near the mean avoids cancellation."""
    first = tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    used = columns < C
    shift = tl.load(y + columns, mask=used, other=0.0).to(tl.float32)
    total, square = tl.zeros([RB, CB], tl.float32), tl.zeros([RB, CB], tl.float32)
    for step in range(STEPS):
        # from the end, which was written last and may still be cached
        rows = ((STEPS - 1 - step) * PROGRAMS + PROGRAMS - 1 - first) * RB + tl.arange(0, RB)
        mask = (rows < M)[:, None] & used[None, :]
        v = tl.load(y + rows[:, None] * C + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        v = tl.where(mask, v - shift[None, :], 0.0)
        total += v
        square += v * v
    tl.atomic_add(sums + columns, tl.sum(total, axis=0), mask=used, sem="relaxed")
    tl.atomic_add(squares + columns, tl.sum(square, axis=0), mask=used, sem="relaxed")


@triton.jit
def centre_and_scale(shift, sums, squares, mean, rstd, unbiased, columns, used, M, eps):
    """-> mean, 1 / sqrt(variance + eps) [CB] from the sums; the first program stores them for the backward pass, and
    the unbiased variance for the running statistics, as in nn.BatchNorm2d."""
    off = tl.load(sums + columns, mask=used, other=0.0) / M
    variance = tl.maximum(tl.load(squares + columns, mask=used, other=0.0) / M - off * off, 0.0)
    centre = tl.load(shift + columns, mask=used, other=0.0).to(tl.float32) + off
    scale = 1 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(mean + columns, centre, mask=used)
        tl.store(rstd + columns, scale, mask=used)
        tl.store(unbiased + columns, variance * (M.to(tl.float32) / (M - 1).to(tl.float32)), mask=used)
    return centre, scale


@triton.jit
def normalise(
    y, residual, out, shift, sums, squares, mean, rstd, unbiased, gamma, beta, M, eps,
    C: tl.constexpr, SHORTCUT: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """out = relu((y - mean) rstd gamma + beta [+ residual]), all [M, C]."""
    rows, columns = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * CB + tl.arange(0, CB)
    used = columns < C
    centre, scale = centre_and_scale(shift, sums, squares, mean, rstd, unbiased, columns, used, M, eps)
    scale *= tl.load(gamma + columns, mask=used, other=0.0).to(tl.float32)
    offset = tl.load(beta + columns, mask=used, other=0.0).to(tl.float32)
    at, mask = rows[:, None] * C + columns[None, :], (rows < M)[:, None] & used[None, :]
    v = (tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :] + offset[None, :]
    if SHORTCUT:
        v += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, tl.maximum(v, 0.0).to(out.dtype.element_ty), mask=mask)


@triton.jit
def normalise_and_pool(
    y, residual, out, pooled, shift, sums, squares, mean, rstd, unbiased, gamma, beta, M, eps,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
    C: tl.constexpr, SHORTCUT: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """The same with one window of P x P pixels per row of the tile, and the averages of the windows [B, n, C].

    Windows cut off by the border count for `out` but not for `pooled`.
    """
    GH: tl.constexpr = (H + P - 1) // P
    GW: tl.constexpr = (W + P - 1) // P
    window, columns = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * CB + tl.arange(0, CB)
    used = columns < C
    image, gy, gx = window // (GH * GW), window // GW % GH, window % GW
    centre, scale = centre_and_scale(shift, sums, squares, mean, rstd, unbiased, columns, used, M, eps)
    scale *= tl.load(gamma + columns, mask=used, other=0.0).to(tl.float32)
    offset = tl.load(beta + columns, mask=used, other=0.0).to(tl.float32)
    total = tl.zeros([RB, CB], tl.float32)
    for dy in range(P):
        for dx in tl.static_range(P):
            h, w = gy * P + dy, gx * P + dx
            mask = ((image * H * W < M) & (h < H) & (w < W))[:, None] & used[None, :]
            at = ((image * H + h) * W + w)[:, None] * C + columns[None, :]
            v = (tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
            v += offset[None, :]
            if SHORTCUT:
                v += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
            v = tl.maximum(v, 0.0)
            tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
            total += v
    at = ((image * (H // P) + gy) * (W // P) + gx)[:, None] * C + columns[None, :]
    mask = ((image * H * W < M) & (gy < H // P) & (gx < W // P))[:, None] & used[None, :]
    tl.store(pooled + at, (total / (P * P)).to(pooled.dtype.element_ty), mask=mask)


@triton.jit
def incoming_gradient(
    above, skip, pooled, out, v, rows, columns, mask,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
    ABOVE: tl.constexpr, SKIP: tl.constexpr, POOLED: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """The gradient of a map before its ReLU [RB, CB]: the sum of its sources where the map is positive.

    Sources: `above` from the next convolution, `skip` from the shortcut around it, `pooled` [B, n, C] from capsules.
    MASK names the tensor to test: "v", the normalised conv output, "out" if there is a shortcut, or "none".
    """
    at = rows[:, None] * C + columns[None, :]
    g = tl.zeros(mask.shape, tl.float32)
    if ABOVE:
        g += tl.load(above + at, mask=mask, other=0.0).to(tl.float32)
    if SKIP:
        g += tl.load(skip + at, mask=mask, other=0.0).to(tl.float32)
    if POOLED:
        image, gy, gx = rows // (H * W), rows // W % H // P, rows % W // P
        inside = mask & ((gy < H // P) & (gx < W // P))[:, None]
        place = ((image * (H // P) + gy) * (W // P) + gx)[:, None] * C + columns[None, :]
        g += tl.load(pooled + place, mask=inside, other=0.0).to(tl.float32) / (P * P)
    if MASK == "v":
        g = tl.where(v > 0, g, 0.0)
    if MASK == "out":
        g = tl.where(tl.load(out + at, mask=mask, other=0.0).to(tl.float32) > 0, g, 0.0)
    return g


@triton.jit
def gradient_sums(
    y, above, skip, pooled, out, g_out, mean, rstd, gamma, beta, products, d_beta, M,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
    ABOVE: tl.constexpr, SKIP: tl.constexpr, POOLED: tl.constexpr, MASK: tl.constexpr, WRITE: tl.constexpr,
    PROGRAMS: tl.constexpr, STEPS: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Adds sum g to d_beta and sum g (y - mean) to products [C]; with WRITE also g [M, C] (may overwrite `above`)."""
    first = tl.program_id(0)
    columns = tl.program_id(1) * CB + tl.arange(0, CB)
    used = columns < C
    centre, scale = tl.load(mean + columns, mask=used, other=0.0), tl.load(rstd + columns, mask=used, other=0.0)
    slope = tl.load(gamma + columns, mask=used, other=0.0).to(tl.float32)
    offset = tl.load(beta + columns, mask=used, other=0.0).to(tl.float32)
    total, product = tl.zeros([RB, CB], tl.float32), tl.zeros([RB, CB], tl.float32)
    for step in range(STEPS):
        rows = ((STEPS - 1 - step) * PROGRAMS + PROGRAMS - 1 - first) * RB + tl.arange(0, RB)
        mask = (rows < M)[:, None] & used[None, :]
        at = rows[:, None] * C + columns[None, :]
        off = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
        v = off * (scale * slope)[None, :] + offset[None, :]
        g = incoming_gradient(above, skip, pooled, out, v, rows, columns, mask, H, W, P, C, ABOVE, SKIP, POOLED, MASK)
        if WRITE:
            tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask=mask)
        total += g
        product += g * off
    tl.atomic_add(d_beta + columns, tl.sum(total, axis=0), mask=used, sem="relaxed")
    tl.atomic_add(products + columns, tl.sum(product, axis=0), mask=used, sem="relaxed")


@triton.jit
def gradient_through_norm(
    y, above, skip, pooled, out, dy, mean, rstd, gamma, beta, products, d_gamma, d_beta, M,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
    ABOVE: tl.constexpr, SKIP: tl.constexpr, POOLED: tl.constexpr, MASK: tl.constexpr,
    RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """dy = gamma rstd (g - mean(g) - xhat mean(g xhat)) [M, C] (may overwrite `above`); d_gamma = sum g xhat [C]."""
    rows, columns = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * CB + tl.arange(0, CB)
    used = columns < C
    centre, scale = tl.load(mean + columns, mask=used, other=0.0), tl.load(rstd + columns, mask=used, other=0.0)
    slope = tl.load(gamma + columns, mask=used, other=0.0).to(tl.float32)
    offset = tl.load(beta + columns, mask=used, other=0.0).to(tl.float32)
    mean_g = tl.load(d_beta + columns, mask=used, other=0.0) / M
    sum_g_xhat = tl.load(products + columns, mask=used, other=0.0) * scale
    if tl.program_id(0) == 0:
        tl.store(d_gamma + columns, sum_g_xhat, mask=used)
    mean_g_xhat = sum_g_xhat / M
    at, mask = rows[:, None] * C + columns[None, :], (rows < M)[:, None] & used[None, :]
    off = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    v = off * (scale * slope)[None, :] + offset[None, :]
    g = incoming_gradient(above, skip, pooled, out, v, rows, columns, mask, H, W, P, C, ABOVE, SKIP, POOLED, MASK)
    d = (scale * slope)[None, :] * (g - mean_g[None, :] - off * (mean_g_xhat * scale)[None, :])
    tl.store(dy + at, d.to(dy.dtype.element_ty), mask=mask)


@triton.jit
def image_patches(
    x, weight, patches, padded, x_b, x_c, x_h, x_w, w_o, w_i, w_h, w_w, rows_of_x, programs_of_x,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, K: tl.constexpr,
    RB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """x [b, c, h, w] -> 3x3 patches [b h w, K] with columns (row, column, channel), zeros from 9 c to K; further
    programs lay out the weight [o, c, 3, 3] in the same way, as `padded` [o, K]."""
    column = tl.arange(0, KB)
    c, kx, ky = column % CIN, column // CIN % 3, column // (3 * CIN)
    real = column < 9 * CIN
    program = tl.program_id(0)
    if program < programs_of_x:
        row = program * RB + tl.arange(0, RB)
        b, h, w = row // (H * W), row // W % H, row % W
        hh, ww = h[:, None] + ky[None, :] - 1, w[:, None] + kx[None, :] - 1
        mask = (row < rows_of_x)[:, None] & real[None, :] & (hh >= 0) & (hh < H) & (ww >= 0) & (ww < W)
        v = tl.load(x + b[:, None] * x_b + c[None, :] * x_c + hh * x_h + ww * x_w, mask=mask, other=0.0)
        tl.store(
            patches + row[:, None] * K + column[None, :], v, mask=(row < rows_of_x)[:, None] & (column < K)[None, :]
        )
    else:
        row = (program - programs_of_x) * RB + tl.arange(0, RB)
        at = row[:, None] * w_o + (c * w_i + ky * w_h + kx * w_w)[None, :]
        v = tl.load(weight + at, mask=(row < COUT)[:, None] & real[None, :], other=0.0)
        tl.store(padded + row[:, None] * K + column[None, :], v, mask=(row < COUT)[:, None] & (column < K)[None, :])


@triton.jit
def conv3x3(
    x, weight, y, shift, sums, squares, M,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, COUT: tl.constexpr,
    STRIDE: tl.constexpr, TRANSPOSED: tl.constexpr, SUMS: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x [b, H, W, C], weight [COUT, 3, 3, C] -> y [M = b HO WO, COUT], padding 1. With SUMS adds sum (y - shift) and
    sum (y - shift)^2 over the pixels, of y as stored; a shift near the mean avoids cancellation. TRANSPOSED reads a
    weight [C, 3, 3, COUT] from its last tap to its first: from the gradient of the output to that of the input."""
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
        if TRANSPOSED:
            at = column[None, :] + (c * (9 * COUT) + (8 - tap) * COUT)[:, None]
        else:
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


# PatchifyCaps after its pooling. A program computes RB rows of [b n, ...], capsules of one scale, in chunks of CB over
# c; d is padded to DP. Products take operands in the precision of x and accumulate in fp32; the rest is fp32.


@triton.jit
def product(a, b, WIDE: tl.constexpr):
    """a b in fp32. WIDE converts the operands, too: Triton's interpreter would multiply the bits of bf16 numbers."""
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
    """Writes dx and adds to the other gradients, which are zeros in fp32 at first."""
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


# Depthwise convolutions: filters [K K, C], tap after tap, each for all channels.


@triton.jit
def depthwise(
    x, filters, y, M,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr,
    RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """y[h, w] = sum over taps of x[h + i, w + j] filters[i, j], zero beyond the border; TRANSPOSED rotates the filters
    by 180 degrees: from the gradient of the output to that of the input."""
    rows, columns = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1) * CB + tl.arange(0, CB)
    used, h, w = columns < C, rows // W % H, rows % W
    total = tl.zeros([RB, CB], tl.float32)
    for tap in tl.static_range(K * K):
        i, j = tap // K - K // 2, tap % K - K // 2
        inside = (rows < M) & (h + i >= 0) & (h + i < H) & (w + j >= 0) & (w + j < W)
        at = (rows + i * W + j)[:, None] * C + columns[None, :]
        v = tl.load(x + at, mask=inside[:, None] & used[None, :], other=0.0).to(tl.float32)
        from_tap = K * K - 1 - tap if TRANSPOSED else tap
        total += v * tl.load(filters + from_tap * C + columns, mask=used, other=0.0).to(tl.float32)[None, :]
    mask = (rows < M)[:, None] & used[None, :]
    tl.store(y + rows[:, None] * C + columns[None, :], total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def depthwise_filters(
    x, dy, total, M,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    STEPS: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Adds the gradient of the filters to total [K K, C], a row of K taps per program: sum of x[h + i, w + j] dy[h, w].
    KP is K rounded up to a power of two."""
    columns, taps = tl.program_id(1) * CB + tl.arange(0, CB), tl.arange(0, KP)
    used, row, j = columns < C, tl.program_id(2), taps - K // 2
    i = row - K // 2
    sums = tl.zeros([KP, RB, CB], tl.float32)
    for step in range(STEPS):
        rows = (step * tl.num_programs(0) + tl.program_id(0)) * RB + tl.arange(0, RB)
        h, w = rows // W % H, rows % W
        real = (rows < M) & (h + i >= 0) & (h + i < H)
        g = tl.load(dy + rows[:, None] * C + columns[None, :], mask=real[:, None] & used[None, :], other=0.0)
        across = w[None, :] + j[:, None]  # [KP, RB]
        inside = real[None, :] & (across >= 0) & (across < W) & (taps < K)[:, None]
        at = (rows[None, :] + i * W + j[:, None])[:, :, None] * C + columns[None, None, :]
        v = tl.load(x + at, mask=inside[:, :, None] & used[None, None, :], other=0.0)
        sums += v.to(tl.float32) * g.to(tl.float32)[None, :, :]
    at = (row * K + taps)[:, None] * C + columns[None, :]
    tl.atomic_add(total + at, tl.sum(sums, axis=1), mask=(taps < K)[:, None] & used[None, :], sem="relaxed")
