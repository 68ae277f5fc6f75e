"""How much each patch of each scale has to do with every class.

Begin with a blank image of the mean colour and uncover the patches of one scale one after another. What patch i adds to
the length of class capsule j before squash when its turn comes, meaned over orders, is its effect:

    e[i, j] = mean over orders of  |s_j|(patches before i, and i)  -  |s_j|(patches before i)

Over all orders this is the Shapley value of the patch, which is worked out exactly where patches are FEW. Of more it
is the mean over ORDERS of them, half drawn once and for all, half the same ones backwards, so that what is early in one
is late in another. Whatever the orders, the effects of a scale add up exactly to |s_j| of the image less |s_j| of the
blank one, and no slope is taken anywhere: the maximum in the routing and the ReLUs before it count for what they do,
not for what they would do to an infinitely small change.

The scales are asked apart, since their patches overlap: a whole on each level. One pass answers for all classes.
docs/explain.md has this measured against other ways.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mspcaps.explanation.blocks import run_routing
from mspcaps.explanation.geometry import Scale
from mspcaps.models.mspcaps import MSPCaps

Progress = Callable[[int, int], None]  # passes done, passes in all
FEW = 4  # patches: all their subsets take hardly more passes than ORDERS orders
ORDERS = 4  # more are better and cost as much again; an even number, see orders_of
PIXELS = 32 * 32 * 32  # in one pass through the model: more would take more memory and hardly less time


@torch.no_grad()
def class_norms(model: MSPCaps, x: Tensor) -> Tensor:
    """Images [b, c, h, w] -> lengths of the class capsules before squash, [b, K]."""
    return run_routing(list(model.routing), model.forward_features(x))[-1].norms


def orders_of(n: int, count: int) -> Iterator[Tensor]:
    """Orders of n patches, int64 [n] each: every second one is the one before it backwards. Always the same ones."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count // 2):
        order = torch.randperm(n, generator=generator)
        yield order
        yield order.flip(0)


def effects(
    model: MSPCaps, x: Tensor, scales: Sequence[Scale], orders: int = ORDERS, progress: Progress = lambda done, of: None
) -> list[Tensor]:
    """Images [b, c, h, w], a model in evaluation mode -> [b, n_i, K] of every scale."""
    blank = model.normalize.mean.expand_as(x)
    ends = class_norms(model, blank[:1]).expand(len(x), -1), class_norms(model, x)  # nothing shown, all shown
    together = max(1, PIXELS // (len(x) * x.shape[2] * x.shape[3]))
    counts = [scale.grid[0] * scale.grid[1] for scale in scales]
    passed, passes = 0, sum(2**n - 2 if n <= FEW else orders * (n - 1) for n in counts)

    def norms(shown: Tensor, owners: Tensor) -> Tensor:
        """Which patches are shown, bool [s, n], nothing first and all last -> lengths before squash, [s, b, K]."""
        nonlocal passed
        between = []
        for part in shown[1:-1].split(together):
            if len(part):  # not with a single patch
                images = torch.where(part[:, owners][:, None, None], x, blank)  # [s, b, c, h, w]
                between.append(class_norms(model, images.flatten(0, 1)).unflatten(0, (len(part), -1)))
                passed += len(part)
                progress(passed, passes)
        return torch.cat([ends[0][None], *between, ends[1][None]])

    found = []
    for scale, n in zip(scales, counts, strict=True):
        owners = scale.owners().to(x.device)  # [h, w]
        if n <= FEW:
            subsets = torch.arange(2**n)[:, None] >> torch.arange(n) & 1 == 1
            total = shapley(subsets, norms(subsets.to(x.device), owners))
        else:
            total = torch.zeros(n, *ends[0].shape, device=x.device)  # [n, b, K]
            for order in orders_of(n, orders):
                shown = order.argsort() < torch.arange(n + 1)[:, None]
                total[order.to(x.device)] += norms(shown.to(x.device), owners).diff(dim=0) / orders
        found.append(total.transpose(0, 1))
    return found


def shapley(subsets: Tensor, values: Tensor) -> Tensor:
    """All subsets of n patches, bool [2^n, n] in the order of their binary numbers, with values [2^n, ...] -> [n, ...]:
    what each patch adds, meaned over all orders."""
    n, sizes = subsets.shape[1], subsets.sum(1).tolist()
    found = []
    for i in range(n):
        without = [s for s in range(2**n) if not subsets[s, i]]
        found.append(sum((values[s + 2**i] - values[s]) / (n * math.comb(n - 1, sizes[s])) for s in without))
    return torch.stack(found)  # type: ignore[arg-type]
