"""The two kernels of cross-agreement routing. Import only where Triton is present.

Letters as in `capsules.routing.cross_agreement`. A program owns one image b and JB output capsules j; it reads the
votes as tiles [KC, JB, EP] (k in chunks of KC, e padded to EP), one coarse and M fine tiles per chunk. K, M, J, E are
constants of the compiled kernel: the masks fold away where the sizes are powers of two.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def tile(k0, j0, b, stride_k, stride_b, stride_j, KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr):
    """Offsets [KC, JB, EP] of one tile; 64 bits, since the votes of large models may pass 2^31 elements."""
    k = (k0 + tl.arange(0, KC)).to(tl.int64) * stride_k
    j = (j0 + tl.arange(0, JB)).to(tl.int64) * stride_j
    return b.to(tl.int64) * stride_b + k[:, None, None] + j[None, :, None] + tl.arange(0, EP)[None, None, :]


@triton.jit
def tile_mask(
    k0, j0, K: tl.constexpr, J: tl.constexpr, E: tl.constexpr, KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr
):
    k, j, e = k0 + tl.arange(0, KC), j0 + tl.arange(0, JB), tl.arange(0, EP)
    return (k < K)[:, None, None] & (j < J)[None, :, None] & (e < E)[None, None, :]


@triton.jit
def agree(
    fine, coarse, k0, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale, mask,
    K: tl.constexpr, M: tl.constexpr, KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """-> coarse votes U2 [KC, JB, EP], agreement A = max_m <U1, U2> / sqrt(e) [KC, JB] (-inf beyond K),
    the sum of the U1 that attain it [KC, JB, EP], and which m do, as bits [KC, JB]."""
    u2 = tl.load(coarse + tile(k0, j0, b, coarse_k, coarse_b, coarse_j, KC, JB, EP), mask=mask, other=0.0)
    u2 = u2.to(tl.float32)
    at = tile(k0, j0, b, fine_k, fine_b, fine_j, KC, JB, EP)
    best = tl.load(fine + at, mask=mask, other=0.0).to(tl.float32)
    top = tl.sum(best * u2, axis=2)
    hits = tl.full([KC, JB], 1, tl.int32)
    for i in tl.static_range(1, M):
        u1 = tl.load(fine + at + i * fine_m, mask=mask, other=0.0).to(tl.float32)
        a = tl.sum(u1 * u2, axis=2)
        above, level = a > top, a == top
        best = tl.where(above[:, :, None], u1, tl.where(level[:, :, None], best + u1, best))
        hits = tl.where(above, 1 << i, tl.where(level, hits | (1 << i), hits))
        top = tl.maximum(a, top)
    a = tl.where((k0 + tl.arange(0, KC) < K)[:, None], top * scale, float("-inf"))
    return u2, a, best, hits


@triton.jit
def weighted_sum(
    fine, coarse, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale,
    K: tl.constexpr, M: tl.constexpr, J: tl.constexpr, E: tl.constexpr,
    KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """Softmax over k as it comes -> highest agreement [JB], sum of exponentials [JB], s = sum_k c U2 [JB, EP]."""
    peak = tl.full([JB], float("-inf"), tl.float32)
    total = tl.zeros([JB], tl.float32)
    s = tl.zeros([JB, EP], tl.float32)
    for k0 in range(0, K, KC):
        mask = tile_mask(k0, j0, K, J, E, KC, JB, EP)
        u2, a, _, _ = agree(
            fine, coarse, k0, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale, mask,
            K, M, KC, JB, EP,
        )  # fmt: skip
        higher = tl.maximum(peak, tl.max(a, axis=0))
        shrink = tl.exp(peak - higher)
        c = tl.exp(a - higher[None, :])
        total = total * shrink + tl.sum(c, axis=0)
        s = s * shrink[:, None] + tl.sum(c[:, :, None] * u2, axis=0)
        peak = higher
    return peak, total, s / total[:, None]


@triton.jit
def routing_forward(
    fine, coarse, out, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale, eps,
    K: tl.constexpr, M: tl.constexpr, J: tl.constexpr, E: tl.constexpr,
    KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    b, j0 = tl.program_id(0), tl.program_id(1) * JB
    _, _, s = weighted_sum(
        fine, coarse, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale,
        K, M, J, E, KC, JB, EP,
    )  # fmt: skip
    square = tl.sum(s * s, axis=1)
    v = s * (tl.sqrt(square + eps) / (1 + square))[:, None]
    j, e = j0 + tl.arange(0, JB), tl.arange(0, EP)
    at = (b.to(tl.int64) * J + j)[:, None] * E + e[None, :]
    tl.store(out + at, v, mask=(j < J)[:, None] & (e < E)[None, :])


@triton.jit
def squash_backward(s, dv, eps):
    """s, dv [JB, EP] -> ds."""
    square = tl.sum(s * s, axis=1)
    root = tl.sqrt(square + eps)
    along = tl.sum(s * dv, axis=1) * (1 / (root * (1 + square)) - 2 * root / ((1 + square) * (1 + square)))
    return dv * (root / (1 + square))[:, None] + s * along[:, None]


@triton.jit
def write_gradients(
    d_fine, d_coarse, k0, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j,
    u2, best, hits, c, s, ds, scale, mask,
    M: tl.constexpr, KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """One chunk of dU1 and dU2; dA = c (dc - sum_k c dc), and that sum is <ds, s>."""
    da = c * (tl.sum(ds[None, :, :] * u2, axis=2) - tl.sum(ds * s, axis=1)[None, :]) * scale
    count = tl.zeros([KC, JB], tl.float32)
    for i in tl.static_range(M):
        count += ((hits >> i) & 1).to(tl.float32)
    da = da / count  # maxima that tie share the gradient evenly, as torch.amax does
    du2 = c[:, :, None] * ds[None, :, :] + da[:, :, None] * best
    at = tile(k0, j0, b, coarse_k, coarse_b, coarse_j, KC, JB, EP)
    tl.store(d_coarse + at, du2.to(d_coarse.dtype.element_ty), mask=mask)
    at = tile(k0, j0, b, fine_k, fine_b, fine_j, KC, JB, EP)
    for i in tl.static_range(M):
        du1 = (da * ((hits >> i) & 1).to(tl.float32))[:, :, None] * u2
        tl.store(d_fine + at + i * fine_m, du1.to(d_fine.dtype.element_ty), mask=mask)


@triton.jit
def routing_backward(
    fine, coarse, dv, d_fine, d_coarse, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j,
    d_fine_k, d_fine_b, d_fine_m, d_fine_j, d_coarse_k, d_coarse_b, d_coarse_j, dv_b, dv_j, dv_e, scale, eps,
    K: tl.constexpr, M: tl.constexpr, J: tl.constexpr, E: tl.constexpr,
    KC: tl.constexpr, JB: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    b, j0 = tl.program_id(0), tl.program_id(1) * JB
    j, e = j0 + tl.arange(0, JB), tl.arange(0, EP)
    at = b.to(tl.int64) * dv_b + (j.to(tl.int64) * dv_j)[:, None] + (e.to(tl.int64) * dv_e)[None, :]
    dv_tile = tl.load(dv + at, mask=(j < J)[:, None] & (e < E)[None, :], other=0.0).to(tl.float32)
    if K <= KC:  # every vote is read once and stays in registers
        mask = tile_mask(0, j0, K, J, E, KC, JB, EP)
        u2, a, best, hits = agree(
            fine, coarse, 0, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale, mask,
            K, M, KC, JB, EP,
        )  # fmt: skip
        c = tl.exp(a - tl.max(a, axis=0)[None, :])
        c = c / tl.sum(c, axis=0)[None, :]
        s = tl.sum(c[:, :, None] * u2, axis=0)
        ds = squash_backward(s, dv_tile, eps)
        write_gradients(
            d_fine, d_coarse, 0, j0, b, d_fine_k, d_fine_b, d_fine_m, d_fine_j, d_coarse_k, d_coarse_b, d_coarse_j,
            u2, best, hits, c, s, ds, scale, mask, M, KC, JB, EP,
        )  # fmt: skip
    else:
        peak, total, s = weighted_sum(
            fine, coarse, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale,
            K, M, J, E, KC, JB, EP,
        )  # fmt: skip
        ds = squash_backward(s, dv_tile, eps)
        for k0 in range(0, K, KC):
            mask = tile_mask(k0, j0, K, J, E, KC, JB, EP)
            u2, a, best, hits = agree(
                fine, coarse, k0, j0, b, fine_k, fine_b, fine_m, fine_j, coarse_k, coarse_b, coarse_j, scale, mask,
                K, M, KC, JB, EP,
            )  # fmt: skip
            c = tl.exp(a - peak[None, :]) / total[None, :]
            write_gradients(
                d_fine, d_coarse, k0, j0, b,
                d_fine_k, d_fine_b, d_fine_m, d_fine_j, d_coarse_k, d_coarse_b, d_coarse_j,
                u2, best, hits, c, s, ds, scale, mask, M, KC, JB, EP,
            )  # fmt: skip
