"""How much each patch of each scale has to do with every class. Any model will do: only its scores are asked for.

Begin with a blank image of the mean colour and uncover the patches of one scale one after another. What patch i adds to
the evidence v for class j when its turn comes, averaged over orders, is its effect:

    e[i, j] = mean over orders of  v_j(patches before i, and i)  -  v_j(patches before i)

The evidence of a length l is the root of l / (1 - l): of a capsule that was squashed as in CapsNet this is |s_j|, its
length before squash. That of a logit is the logit less the mean of all logits.

Over all orders this is the Shapley value of the patch, which is computed exactly up to EXACT_PATCHES. For more it is
the mean over ORDERS of them, half drawn once and for all, half the same ones backwards, so that what is early in one is
late in another. Whatever the orders, the effects of a scale add up exactly to the evidence in the image less that in
the blank one, and no derivative is taken anywhere: the maximum in the routing and the ReLUs before it count for what
they do, not for what they would do to an infinitely small change.

The scales are asked apart, since their patches overlap: a whole on each level. One pass answers for all classes.
docs/explain.md has this measured against other ways.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mspcaps.explanation.geometry import Scale
from mspcaps.models import Model

Progress = Callable[[int, int], None]  # passes done, passes in all
EXACT_PATCHES = 4  # all their subsets take hardly more passes than ORDERS orders
ORDERS = 4  # more are better and cost as much again; an even number, see orders_of
MAX_PIXELS = 32 * 32 * 32  # in one pass through the model: more would take more memory and hardly less time
LONGEST = 1 - 1e-6  # of a capsule: the way back from 1 would be infinite


def evidence(model: Model, scores: Tensor) -> Tensor:
    """Scores [b, K] -> [b, K], without an upper end."""
    if model.scores == "logits":
        return scores - scores.mean(1, keepdim=True)
    scores = scores.clamp(0, LONGEST)  # squash makes l = |s|^2 / (1 + |s|^2) of |s|; this is the way back
    return (scores / (1 - scores)).sqrt()


def mean_image(model: Model, x: Tensor) -> Tensor:
    """Like x [b, c, h, w], but all of the mean colour."""
    return torch.tensor(model.config["mean"], dtype=x.dtype, device=x.device).view(-1, 1, 1).expand_as(x)


def orders_of(n: int, count: int) -> Iterator[Tensor]:
    """Orders of n patches, int64 [n] each: every second one is the one before it backwards. Always the same ones."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count // 2):
        order = torch.randperm(n, generator=generator)
        yield order
        yield order.flip(0)


@torch.no_grad()
def effects(
    model: Model, x: Tensor, scales: Sequence[Scale], orders: int = ORDERS, progress: Progress = lambda done, of: None
) -> list[Tensor]:
    """Images [b, c, h, w], a model in evaluation mode -> [b, n_i, K] of every scale."""
    blank = mean_image(model, x)
    nothing, everything = (evidence(model, model(shown)) for shown in (blank[:1], x))
    nothing = nothing.expand_as(everything)
    together = max(1, MAX_PIXELS // (len(x) * x.shape[2] * x.shape[3]))
    counts = [scale.grid[0] * scale.grid[1] for scale in scales]
    passed, passes = 0, sum(2**n - 2 if n <= EXACT_PATCHES else orders * (n - 1) for n in counts)

    def values(shown: Tensor, owners: Tensor) -> Tensor:
        """Which patches are shown, bool [s, n], nothing first and all last -> the evidence, [s, b, K]."""
        nonlocal passed
        between = []
        for part in shown[1:-1].split(together):
            if len(part):  # not with a single patch
                images = torch.where(part[:, owners][:, None, None], x, blank)  # [s, b, c, h, w]
                between.append(evidence(model, model(images.flatten(0, 1))).unflatten(0, (len(part), -1)))
                passed += len(part)
                progress(passed, passes)
        return torch.cat([nothing[None], *between, everything[None]])

    found = []
    for scale, n in zip(scales, counts, strict=True):
        owners = scale.owners().to(x.device)  # [h, w]
        if n <= EXACT_PATCHES:
            subsets = torch.arange(2**n)[:, None] >> torch.arange(n) & 1 == 1
            total = shapley(subsets, values(subsets.to(x.device), owners))
        else:
            total = torch.zeros(n, *everything.shape, device=x.device)  # [n, b, K]
            for order in orders_of(n, orders):
                shown = order.argsort() < torch.arange(n + 1)[:, None]
                total[order.to(x.device)] += values(shown.to(x.device), owners).diff(dim=0) / orders
        found.append(total.transpose(0, 1))
    return found


def shapley(subsets: Tensor, values: Tensor) -> Tensor:
    """All subsets of n patches, bool [2^n, n] in the order of their binary numbers, with values [2^n, ...] -> [n, ...]:
    what each patch adds, averaged over all orders."""
    n, sizes = subsets.shape[1], subsets.sum(1).tolist()
    found = []
    for i in range(n):
        without = [s for s in range(2**n) if not subsets[s, i]]
        found.append(sum((values[s + 2**i] - values[s]) / (n * math.comb(n - 1, sizes[s])) for s in without))
    return torch.stack(found)  # type: ignore[arg-type]
