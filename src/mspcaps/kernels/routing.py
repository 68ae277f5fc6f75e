"""Cross-agreement routing from the votes on: one kernel forward, one backward.

Computes what `CrossAgreementRouting.forward` computes after its votes, in fp32 whatever the precision of the votes, and
keeps nothing but the votes for the backward pass. Both operators are opaque to torch.compile.
"""

from typing import Any

import torch
from torch import Tensor

from mspcaps.kernels import EPS, power_of_two

MOST_E = 1024  # output dimension; a larger one would leave too few capsules per tile
MOST_M = 31  # fine capsules per coarse one: the backward pass marks the maximal ones in 32 bits
TILE = 1024  # elements of one tile [KC, JB, EP]: four warps with 8 elements (16 bytes of bf16) per thread
LARGEST_TILE = 8192  # beyond this the registers no longer hold the tiles: k is taken in chunks


def supported(k: int, m: int, j: int, e: int, dtype: torch.dtype) -> bool:
    """Whether the kernels take votes of these sizes and this precision."""
    return (
        min(k, m, j, e) >= 1 and m <= MOST_M and e <= MOST_E and dtype in (torch.bfloat16, torch.float16, torch.float32)
    )


@torch.library.custom_op("mspcaps::cross_agreement", mutates_args=())
def cross_agreement(votes: Tensor) -> Tensor:
    """Shared vote weights: votes [k, b, m + 1, j, e], the coarse vote in the last row -> capsules [b, j, e] in fp32."""
    votes = with_contiguous_e(votes)
    return launch_forward(votes[:, :, :-1], votes[:, :, -1])


@cross_agreement.register_fake
def _(votes: Tensor) -> Tensor:
    return votes.new_empty(votes.shape[1], *votes.shape[3:], dtype=torch.float32)


@torch.library.custom_op("mspcaps::cross_agreement_backward", mutates_args=())
def shared_backward(votes: Tensor, dv: Tensor) -> Tensor:
    votes, dvotes = with_contiguous_e(votes), torch.empty(votes.shape, dtype=votes.dtype, device=votes.device)
    launch_backward(votes[:, :, :-1], votes[:, :, -1], dv, dvotes[:, :, :-1], dvotes[:, :, -1])
    return dvotes


@shared_backward.register_fake
def _(votes: Tensor, dv: Tensor) -> Tensor:
    return votes.new_empty(votes.shape)


@torch.library.custom_op("mspcaps::cross_agreement_pair", mutates_args=())
def cross_agreement_pair(fine: Tensor, coarse: Tensor) -> Tensor:
    """Fine votes [k, b, m, j, e] (any strides: [k, m, b, j, e] in memory is fine), coarse votes [k, b, j, e]
    -> capsules [b, j, e] in fp32."""
    return launch_forward(with_contiguous_e(fine), with_contiguous_e(coarse))


@cross_agreement_pair.register_fake
def _(fine: Tensor, coarse: Tensor) -> Tensor:
    return coarse.new_empty(coarse.shape[1:], dtype=torch.float32)


@torch.library.custom_op("mspcaps::cross_agreement_pair_backward", mutates_args=())
def pair_backward(fine: Tensor, coarse: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    d_fine, d_coarse = pair_gradients(fine, coarse)
    launch_backward(with_contiguous_e(fine), with_contiguous_e(coarse), dv, d_fine, d_coarse)
    return d_fine, d_coarse


@pair_backward.register_fake
def _(fine: Tensor, coarse: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    return pair_gradients(fine, coarse)


def pair_gradients(fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised gradients; that of the fine votes as [k, m, b, j, e] in memory, the layout of their product."""
    k, b, m, j, e = fine.shape
    return fine.new_empty(k, m, b, j, e).transpose(1, 2), coarse.new_empty(coarse.shape)


def save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


cross_agreement.register_autograd(lambda ctx, dv: shared_backward(*ctx.saved_tensors, dv), setup_context=save_inputs)
cross_agreement_pair.register_autograd(lambda ctx, dv: pair_backward(*ctx.saved_tensors, dv), setup_context=save_inputs)


def with_contiguous_e(votes: Tensor) -> Tensor:
    return votes if votes.stride(-1) == 1 else votes.contiguous()


def blocks(k: int, j: int, e: int) -> tuple[int, int, int, int]:
    """-> KC, JB, EP (powers of two) and the number of warps.

    Small tiles are widened over j, which lies beside e in memory: to TILE elements, or beyond while a row of the tile
    is shorter than 128 bytes; but not if more than a quarter of the lanes would lie beyond j.
    """
    kc, ep, jb = power_of_two(k), power_of_two(e), 1
    kc = min(kc, LARGEST_TILE // ep)
    while jb < j:
        wider = 2 * jb
        if kc * wider * ep > (4 * TILE if jb * ep < 64 else TILE) or -(-j // wider) * wider > 1.25 * j:
            break
        jb = wider
    return kc, jb, ep, min(8, max(1, kc * jb * ep // 256))


def launch_forward(fine: Tensor, coarse: Tensor) -> Tensor:
    from mspcaps.kernels.triton_routing import routing_forward

    k, b, m, j, e = fine.shape
    kc, jb, ep, warps = blocks(k, j, e)
    out = coarse.new_empty(b, j, e, dtype=torch.float32)
    with torch.cuda.device_of(coarse):
        routing_forward[(b, -(-j // jb))](
            fine, coarse, out, *fine.stride()[:4], *coarse.stride()[:3], e**-0.5, EPS,
            K=k, M=m, J=j, E=e, KC=kc, JB=jb, EP=ep, num_warps=warps,
        )  # fmt: skip
    return out


def launch_backward(fine: Tensor, coarse: Tensor, dv: Tensor, d_fine: Tensor, d_coarse: Tensor) -> None:
    from mspcaps.kernels.triton_routing import routing_backward

    k, b, m, j, e = fine.shape
    kc, jb, ep, warps = blocks(k, j, e)
    with torch.cuda.device_of(coarse):
        routing_backward[(b, -(-j // jb))](
            fine, coarse, dv, d_fine, d_coarse, *fine.stride()[:4], *coarse.stride()[:3],
            *d_fine.stride()[:4], *d_coarse.stride()[:3], *dv.stride(), e**-0.5, EPS,
            K=k, M=m, J=j, E=e, KC=kc, JB=jb, EP=ep, num_warps=warps,
        )  # fmt: skip
