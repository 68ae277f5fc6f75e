"""Operations on feature maps, contiguous [b, h, w, c]: narrow convolutions, and BatchNorm in training mode with ReLU,
shortcut and patch average in as few passes over memory as the sums allow.

Forward per layer: `normalised`, after a pass for the sums unless the convolution has computed them. Backward per layer:
`gradient_sums` and `gradient_through_norm`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHANNELS = 64  # per block in the kernels that sum over rows: 128 bytes of bf16, one cache line
MAX_NARROW_CHANNELS = 96  # for our own convolution; with more channels cuDNN is hard to beat
PROGRAMS = 264  # to aim for: two per multiprocessor of the largest GPUs


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: the sides of Triton's tiles."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Norm:
    """One layer's BatchNorm: its conv output y [b, h, w, c], and its vectors [c]."""

    y: Tensor
    mean: Tensor
    rstd: Tensor
    gamma: Tensor
    beta: Tensor

    @property
    def rows(self) -> int:
        return self.y.shape[0] * self.y.shape[1] * self.y.shape[2]


def summing_grid(rows: int, c: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and tile of the kernels that sum over rows: about PROGRAMS programs, each of which loops over several tiles.

    Tiles of 2048 were among the fastest at four sizes of T and L, timed alone on an H200.
    """
    cb = min(power_of_two(c), CHANNELS)
    blocks, rb = -(-c // cb), 2048 // cb
    programs = max(1, min(-(-rows // rb), PROGRAMS // blocks))
    sizes = {"PROGRAMS": programs, "STEPS": -(-rows // (programs * rb)), "RB": rb, "CB": cb}
    return (programs, blocks), {**sizes, "num_warps": 8 if rows >= 65536 else 4}


def tile_grid(rows: int, c: int, largest_tile: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and tile of the kernels that touch every element once: at least PROGRAMS programs if the map is large
    enough, with 8 elements of a tile (16 bytes of bf16) or 16 per thread."""
    cb = min(power_of_two(c), 128)
    tile = largest_tile
    while tile > 256 and rows * c < tile * PROGRAMS:
        tile //= 2
    rb = max(1, tile // cb)
    return (-(-rows // rb), -(-c // cb)), {"RB": rb, "CB": cb, "num_warps": min(8, max(1, tile // 256))}


def normalised(
    norm: Norm, unbiased: Tensor, sums: Tensor, shift: Tensor | None, residual: Tensor | None, patch: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """-> relu(norm(y) [+ residual]) [b, h, w, c] and, if patch > 0, its patch averages [b, n, c].

    sums [2, c] are zeros, or with a shift [c] the sums of y - shift and of its square. Fills in mean, rstd and the
    unbiased variance [c].
    """
    from mspcaps.kernels.triton_kernels import batch_statistics, normalise, normalise_and_pool

    b, h, w, c = norm.y.shape
    if shift is None:
        grid, blocks = summing_grid(norm.rows, c)
        batch_statistics[grid](norm.y, *sums, norm.rows, C=c, **blocks)
    out = torch.empty_like(norm.y)
    around = norm.y if shift is None else shift  # batch_statistics takes its sums around the first row of y
    vectors = (around, *sums, norm.mean, norm.rstd, unbiased, norm.gamma, norm.beta, norm.rows, eps)
    if not patch:
        grid, blocks = tile_grid(norm.rows, c, largest_tile=4096)
        normalise[grid](norm.y, residual, out, *vectors, C=c, SHORTCUT=residual is not None, **blocks)
        return out, None
    pooled = out.new_empty(b, (h // patch) * (w // patch), c)
    grid, blocks = tile_grid(b * -(-h // patch) * -(-w // patch), c, largest_tile=1024)
    normalise_and_pool[grid](
        norm.y, residual, out, pooled, *vectors, H=h, W=w, P=patch, C=c, SHORTCUT=residual is not None, **blocks
    )  # fmt: skip
    return out, pooled


@dataclass(frozen=True)
class GradSources:
    """Where the gradient of a map comes from: the next convolution, the shortcut around it, the capsules [b, n, c]."""

    above: Tensor | None = None
    skip: Tensor | None = None
    pooled: Tensor | None = None
    patch: int = 1
    out: Tensor | None = None  # the map itself if there is a shortcut: the sign of norm(y) is then not that of the map
    masked: bool = False  # already zero where the map is zero

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.above, self.skip, self.pooled, self.out

    def flags(self) -> dict[str, object]:
        mask = "none" if self.masked else "v" if self.out is None else "out"
        sources = {"ABOVE": self.above, "SKIP": self.skip, "POOLED": self.pooled}
        return {**{name: t is not None for name, t in sources.items()}, "MASK": mask, "P": self.patch}


def gradient_sums(norm: Norm, source: GradSources, products: Tensor, d_beta: Tensor, keep: bool) -> GradSources:
    """Adds to d_beta and to products = sum of g (y - mean). With `keep` the summed and masked gradient is written (over
    `above` if there is one) and returned as the only source: later passes then read one map instead of three."""
    from mspcaps.kernels.triton_kernels import gradient_sums as kernel

    _, h, w, c = norm.y.shape
    grid, blocks = summing_grid(norm.rows, c)
    g = None if not keep else source.above if source.above is not None else torch.empty_like(norm.y)
    kernel[grid](
        norm.y, *source.tensors(), g, norm.mean, norm.rstd, norm.gamma, norm.beta, products, d_beta,
        norm.rows, H=h, W=w, C=c, WRITE=keep, **source.flags(), **blocks,
    )  # fmt: skip
    return source if g is None else GradSources(above=g, masked=True)


def gradient_through_norm(
    norm: Norm, source: GradSources, products: Tensor, d_gamma: Tensor, d_beta: Tensor, in_place: bool
) -> Tensor:
    """-> the gradient of y; fills in d_gamma. `in_place`: written over `above`, which is no longer needed."""
    from mspcaps.kernels.triton_kernels import gradient_through_norm as kernel

    _, h, w, c = norm.y.shape
    dy = source.above if in_place and source.above is not None else torch.empty_like(norm.y)
    grid, blocks = tile_grid(norm.rows, c, largest_tile=2048)
    kernel[grid](
        norm.y, *source.tensors(), dy, norm.mean, norm.rstd, norm.gamma, norm.beta, products, d_gamma, d_beta,
        norm.rows, H=h, W=w, C=c, **source.flags(), **blocks,
    )  # fmt: skip
    return dy


def image_patches(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x [b, c, h, w], weight [o, c, 3, 3] -> 3x3 patches [b, h w, k] and the weight [o, k] with the same columns: 9 c
    of them, then zeros up to a multiple of 8 for the tensor cores."""
    from mspcaps.kernels.triton_kernels import image_patches as kernel

    b, c, h, w = x.shape
    k, o = -(-9 * c // 8) * 8, weight.shape[0]
    patches, padded = x.new_empty(b, h * w, k), weight.new_empty(o, k)
    kb = power_of_two(k)
    rb = 4096 // kb
    rows = b * h * w
    programs = -(-rows // rb)
    kernel[(programs + -(-o // rb),)](
        x, weight, patches, padded, *x.stride(), *weight.stride(), rows, programs,
        H=h, W=w, CIN=c, COUT=o, K=k, RB=rb, KB=kb, num_warps=4,
    )  # fmt: skip
    return patches, padded


def narrow(weight: Tensor) -> bool:
    """Whether our own kernel computes a convolution [o, c, 3, 3]: tensor cores need 16 channels on either side."""
    return min(weight.shape[:2]) >= 16 and max(weight.shape[:2]) <= MAX_NARROW_CHANNELS


def narrow_conv(
    x: Tensor, weight: Tensor, stride: int, shift: Tensor | None = None, sums: Tensor | None = None,
    transposed: bool = False,
) -> Tensor:  # fmt: skip
    """x [b, h, w, c], weight [o, c, 3, 3] in channels_last -> [b, ho, wo, o], padding 1.

    With `shift` [o] and `sums` [2, o] adds sum (y - shift) and sum (y - shift)^2 over the pixels. `transposed`: from
    the gradient of the output to that of the input, for stride 1: [b, h, w, o] -> [b, h, w, c].
    """
    from mspcaps.kernels.triton_kernels import conv3x3

    b, h, w, c = x.shape
    o, ho, wo = weight.shape[int(transposed)], -(-h // stride), -(-w // stride)
    y = x.new_empty(b, ho, wo, o)
    rows = b * ho * wo
    bm = 128 if rows >= 128 * 264 else 64
    bn, bk = tile(o), min(64, tile(c))
    statistics = (shift, *sums) if sums is not None else (None, None, None)
    conv3x3[(-(-rows // bm), 1)](
        x, weight.permute(0, 2, 3, 1).contiguous(), y, *statistics, rows,
        H=h, W=w, HO=ho, WO=wo, C=c, COUT=o, STRIDE=stride, TRANSPOSED=transposed, SUMS=sums is not None,
        WIDE=x.dtype == torch.float32 or not x.is_cuda,
        BM=bm, BN=bn, BK=bk, num_warps=8 if bm * bn >= 16384 else 4, num_stages=3,
    )  # fmt: skip
    return y


def tile(channels: int) -> int:
    return max(16, power_of_two(channels))
