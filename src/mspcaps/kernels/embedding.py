"""PatchifyCaps after its pooling, for all scales at once: one kernel forward and one backward per scale.

Computes what `PatchifyCaps.embed` computes: projection, position, LayerNorm. A compiler makes about eight kernels of it
per scale, each of which takes less time than its launch. Both operators are opaque to torch.compile.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mspcaps.kernels.maps import power_of_two

MAX_CAPS_DIM = 256  # largest capsule dimension that fits into one tile
PROGRAMS = 128  # to aim for, to keep most multiprocessors of a GPU busy


def supported(averages: Sequence[Tensor], dims: Sequence[int]) -> bool:
    """Whether the kernels support patch averages [b, n, c] of this precision and capsules of these dimensions."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return max(dims) <= MAX_CAPS_DIM and all(u.dtype in dtypes and 0 < u.numel() < 2**31 for u in averages)


def embed(
    averages: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor], positions: Sequence[Tensor],
    gammas: Sequence[Tensor], betas: Sequence[Tensor], eps: float = 1e-5,
) -> list[Tensor]:  # fmt: skip
    """Per scale: averages [b, n, c], weight [d, c], bias [d], position [n, d], LayerNorm [d] -> capsules [b, n, d]."""
    dtypes = [u.dtype for u in averages]
    weights = [w.to(dtype) for w, dtype in zip(weights, dtypes, strict=True)]
    results = embed_forward(list(averages), weights, list(biases), list(positions), list(gammas), list(betas), eps)
    return results[: len(averages)]


@torch.library.custom_op("mspcaps::embed", mutates_args=())
def embed_forward(
    averages: list[Tensor], weights: list[Tensor], biases: list[Tensor], positions: list[Tensor],
    gammas: list[Tensor], betas: list[Tensor], eps: float,
) -> list[Tensor]:  # fmt: skip
    """-> the capsules, then for the backward pass the normalised values [b n, d] and 1 / deviation [b n], in fp32."""
    from mspcaps.kernels.triton_kernels import embed_forward as kernel

    out, normed, rstd = empty_results(averages, weights)
    for i, x in enumerate(averages):
        grid, sizes = tiles(x, weights[i])
        with torch.cuda.device_of(x):
            kernel[grid](
                x.contiguous(), weights[i].contiguous(), biases[i], positions[i].contiguous(), gammas[i], betas[i],
                out[i], normed[i], rstd[i], len(rstd[i]), eps, **sizes,
            )  # fmt: skip
    return [*out, *normed, *rstd]


@embed_forward.register_fake
def _(averages: list[Tensor], weights: list[Tensor], *_: Any) -> list[Tensor]:
    return [t for kind in empty_results(averages, weights) for t in kind]


@torch.library.custom_op("mspcaps::embed_backward", mutates_args=())
def embed_backward(
    grads: list[Tensor], averages: list[Tensor], weights: list[Tensor], gammas: list[Tensor],
    normed: list[Tensor], rstd: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """-> the gradient of the averages of each scale; one flat vector for all weights and positions, in the precision of
    the averages; and one flat fp32 vector for the same and for all biases, gammas and betas."""
    from mspcaps.kernels.triton_kernels import embed_backward as kernel

    d_averages, matrices, total = empty_gradients(averages, weights)
    total.zero_()
    pieces = iter(total.split([size for shape in shapes(averages, weights) for size in shape]))
    parts = {(kind, i): next(pieces) for kind in ("weight", "position", "vectors") for i in range(len(averages))}
    for i, x in enumerate(averages):
        grid, sizes = tiles(x, weights[i])
        with torch.cuda.device_of(x):
            kernel[grid](
                grads[i].contiguous(), x.contiguous(), weights[i].contiguous(), gammas[i], normed[i], rstd[i],
                d_averages[i], parts["weight", i], parts["position", i], *parts["vectors", i].chunk(3),
                len(rstd[i]), **sizes,
            )  # fmt: skip
    matrices.copy_(total[: matrices.numel()])
    return [*d_averages, matrices, total]


@embed_backward.register_fake
def _(grads: list[Tensor], averages: list[Tensor], weights: list[Tensor], *_: Any) -> list[Tensor]:
    d_averages, matrices, total = empty_gradients(averages, weights)
    return [*d_averages, matrices, total]


def save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    averages, weights, _, positions, gammas, _, _ = inputs
    ctx.set_materialize_grads(False)  # outputs that are only saved have no gradient, not even zeros
    ctx.dtypes = [p.dtype for p in positions]
    ctx.save_for_backward(*averages, *weights, *gammas, *output)


def gradients(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    scales = len(ctx.dtypes)
    kinds = [list(ctx.saved_tensors[i : i + scales]) for i in range(0, 6 * scales, scales)]
    averages, weights, gammas, out, normed, rstd = kinds
    d_out = [torch.zeros_like(u) if g is None else g for g, u in zip(grads, out, strict=False)]
    *d_averages, matrices, total = embed_backward(d_out, averages, weights, gammas, normed, rstd)
    sizes = shapes(averages, weights)
    flat = matrices.split([*sizes[0], *sizes[1]])
    d_weights = [piece.view_as(w) for piece, w in zip(flat, weights, strict=False)]
    d_positions = [
        piece.view(x.shape[1], len(w)).to(dtype)
        for piece, x, w, dtype in zip(flat[scales:], averages, weights, ctx.dtypes, strict=True)
    ]
    d_biases, d_gammas, d_betas = zip(
        *[piece.chunk(3) for piece in total[len(matrices) :].split(sizes[2])], strict=True
    )
    return d_averages, d_weights, list(d_biases), d_positions, list(d_gammas), list(d_betas), None


embed_forward.register_autograd(gradients, setup_context=save)


def shapes(averages: list[Tensor], weights: list[Tensor]) -> tuple[list[int], list[int], list[int]]:
    """-> per scale, the sizes of the weight, of the position, and of bias, gamma and beta together."""
    dims = [len(w) for w in weights]
    positions = [x.shape[1] * d for x, d in zip(averages, dims, strict=True)]
    return [w.numel() for w in weights], positions, [3 * d for d in dims]


def empty_results(averages: list[Tensor], weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    out = [x.new_empty(*x.shape[:2], len(w)) for x, w in zip(averages, weights, strict=True)]
    normed = [u.new_empty(u.shape[0] * u.shape[1], u.shape[2], dtype=torch.float32) for u in out]
    return out, normed, [n.new_empty(len(n)) for n in normed]


def empty_gradients(averages: list[Tensor], weights: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    in_weights, in_positions, in_vectors = map(sum, shapes(averages, weights))
    matrices = averages[0].new_empty(in_weights + in_positions)
    total = matrices.new_empty(len(matrices) + in_vectors, dtype=torch.float32)
    return [u.new_empty(u.shape) for u in averages], matrices, total


def tiles(x: Tensor, weight: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and tile sizes; tensor cores need at least 16 on every side."""
    b, n, c = x.shape
    rows, d = b * n, len(weight)
    rb = 64
    while rb > 16 and rows < rb * PROGRAMS:
        rb //= 2
    sizes = {"N": n, "C": c, "D": d, "RB": rb, "CB": max(16, min(64, power_of_two(c))), "DP": max(16, power_of_two(d))}
    return (-(-rows // rb),), {**sizes, "WIDE": x.dtype == torch.float32 or not x.is_cuda, "num_warps": 4}
