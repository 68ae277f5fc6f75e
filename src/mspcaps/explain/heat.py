"""How much each patch of each scale has to do with a class.

Two answers, both numbers per primary capsule in the unit of the class capsule's length before squash, |s_j|:

effects        e[i]  = integral over a from 0 to 1 of  < d|s_j| / du[i] at blank + a (u - blank),  u[i] - blank[i] >
               where u are the primary capsules of the image and `blank` those of an image of the mean colour, and the
               derivative is that of the routing alone. They add up to |s_j| of the image less |s_j| of the blank one.
               Each is the sum over all ways down the tree: as a coarse vote times its coupling, and as support that
               raises a coupling, where the maximum lets only the best agreement pass.
contributions  the shares of the tree itself, c[j,k] <U2[j,k], s_j / |s_j|> at the coarsest scale, passed on over all k
               to the scales below in proportion to the shares of the middle capsule that agrees most. At each scale
               they add up to |s_j|; every scale counts one part of the whole.

Effects make the heat map. Contributions ask what a vote adds, but a blank image votes nearly the same way: LayerNorm
and position give every patch a loud voice, and it is the couplings that decide whether the voices cancel.
docs/explain.md has both measured.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mspcaps.capsules import CrossAgreementRouting
from mspcaps.explain.blocks import Block, run_routing
from mspcaps.explain.geometry import members

STEPS = 32  # of the integral: the midpoint rule is then within about a percent
TOGETHER = 32  # images in one pass through the routing: more would take more memory and hardly less time


def effects(
    routing: Sequence[nn.Module], u: Sequence[Tensor], blank: Sequence[Tensor], labels: Tensor, steps: int = STEPS
) -> list[Tensor]:
    """Primary capsules u [b, n_i, d_i] and blank [1, n_i, d_i] of every scale, labels [b] -> [b, n_i] of each."""
    differences = [(own - other).detach() for own, other in zip(u, blank, strict=True)]
    totals = [torch.zeros_like(own) for own in differences]
    places = (torch.arange(steps, device=labels.device) + 0.5) / steps
    for at in places.split(max(1, TOGETHER // len(labels))):  # [s]: several steps as one batch of s b images
        points = [
            (b + at.view(-1, 1, 1, 1) * d).flatten(0, 1).detach().requires_grad_()
            for b, d in zip(blank, differences, strict=True)
        ]
        with torch.enable_grad():
            norms = run_routing(routing, points)[-1].norms  # [s b, j]
            wanted = norms.gather(1, labels.repeat(len(at))[:, None]).sum()
            slopes = torch.autograd.grad(wanted, points)
        for total, slope in zip(totals, slopes, strict=True):
            total += slope.unflatten(0, (len(at), -1)).sum(0) / steps
    return [(total * d).sum(-1) for total, d in zip(totals, differences, strict=True)]


def contributions(routing: Sequence[nn.Module], blocks: Sequence[Block], labels: Tensor, scales: int) -> list[Tensor]:
    """The tree's shares -> [b, n_i] of every scale, finest first; each scale adds up to |s_j| / number of scales."""
    top, images = routing[-1], torch.arange(len(labels), device=labels.device)
    assert isinstance(top, CrossAgreementRouting)
    coarse = blocks[-1].contributions[:, images, labels].T  # [b, k]
    below = winner_numbers(top, blocks[-1])[:, images, labels].T  # [b, k], the fine (middle) capsule of each k
    if scales == 1:  # the fine capsules are the coarse ones
        levels = [coarse]
    elif scales == 2:
        levels = [scattered(coarse, below, top.fine[0] * top.fine[1]), coarse]
    else:
        bottom = routing[0]
        assert isinstance(bottom, CrossAgreementRouting)
        shares = blocks[0].contributions / blocks[0].norms  # [k', b, q], sums to one over k'
        picked = shares.permute(1, 2, 0)[images[:, None], below]  # [b, k, k']
        flow = coarse.unsqueeze(-1) * picked  # [b, k, k'], sums to |s_j|
        fine = winner_numbers(bottom, blocks[0]).permute(1, 2, 0)[images[:, None], below]  # [b, k, k']
        levels = [scattered(flow, fine, bottom.fine[0] * bottom.fine[1]), flow.sum(1), coarse]
    return [level / len(levels) for level in levels]


def winner_numbers(routing: CrossAgreementRouting, block: Block) -> Tensor:
    """int64 [k, b, j]: the fine capsule that agrees most with coarse capsule k, by its number on the fine grid."""
    table = members(routing.fine, routing.coarse).to(block.winners.device)  # [k, m]
    k = torch.arange(len(table), device=table.device).view(-1, 1, 1)
    return table[k, block.winners]


def scattered(values: Tensor, numbers: Tensor, n: int) -> Tensor:
    """[b, ...] values added up at their numbers -> [b, n]."""
    return values.new_zeros(len(values), n).scatter_add(1, numbers.flatten(1), values.flatten(1))
