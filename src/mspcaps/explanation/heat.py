"""The effect of each patch of each scale on every class. Works for any model: only its scores are needed.

Begin with a blank image of the mean colour and uncover the patches of one scale one after another. The effect of patch
i is what it adds to the evidence v for class j when its turn comes, averaged over orders:

    e[i, j] = mean over orders of  v_j(patches before i, and i)  -  v_j(patches before i)

The evidence of a length l is the square root of l / (1 - l): for a capsule squashed as in CapsNet this is |s_j|, its
length before squash. The evidence of a logit is the logit minus the mean of all logits.

Over all orders this is the Shapley value of the patch, which is computed exactly for up to EXACT_PATCHES patches. For
more it is the mean over ORDERS orders: half of them random but always the same, the other half their reverses, so that
a patch that comes early in one comes late in another. Whatever the orders, the effects of a scale add up exactly to the
evidence in the image minus that in the blank image. No derivative is taken: the maximum in the routing and the ReLUs
before it count for what they do, not for their response to an infinitely small change.

Scales are treated separately, since their patches overlap. One pass serves all classes. docs/explain.md compares this
with other methods.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mspcaps.explanation.geometry import Scale
from mspcaps.models import Model

Progress = Callable[[int, int], None]  # passes done, passes in all
EXACT_PATCHES = 4  # all their subsets take hardly more passes than ORDERS orders
ORDERS = 4  # an even number, see orders_of; more are better and cost in proportion
MAX_PIXELS = 32 * 32 * 32  # in one pass through the model: more would take more memory and hardly less time
MAX_LENGTH = 1 - 1e-6  # of a capsule: undoing squash at 1 would give infinity


def evidence(model: Model, scores: Tensor) -> Tensor:
    """Scores [b, K] -> [b, K], without an upper bound."""
    if model.scores == "logits":
        return scores - scores.mean(1, keepdim=True)
    scores = scores.clamp(0, MAX_LENGTH)  # undoes squash, l = |s|^2 / (1 + |s|^2)
    return (scores / (1 - scores)).sqrt()


def mean_image(model: Model, x: Tensor) -> Tensor:
    """Like x [b, c, h, w], but all of the mean colour."""
    return torch.tensor(model.config["mean"], dtype=x.dtype, device=x.device).view(-1, 1, 1).expand_as(x)


def orders_of(n: int, count: int) -> Iterator[Tensor]:
    """Orders of n patches, int64 [n] each, always the same ones: every second one reverses the one before it."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count // 2):
        order = torch.randperm(n, generator=generator)
        yield order
        yield order.flip(0)


@torch.no_grad()
def effects(
    model: Model, x: Tensor, scales: Sequence[Scale], orders: int = ORDERS, progress: Progress = lambda done, of: None
) -> list[Tensor]:
    """Images [b, c, h, w], a model in eval mode -> [b, n_i, K] for every scale."""
    blank = mean_image(model, x)
    nothing, everything = (evidence(model, model(images)) for images in (blank[:1], x))
    nothing = nothing.expand_as(everything)
    chunk = max(1, MAX_PIXELS // (len(x) * x.shape[2] * x.shape[3]))
    counts = [scale.grid[0] * scale.grid[1] for scale in scales]
    passed, passes = 0, sum(2**n - 2 if n <= EXACT_PATCHES else orders * (n - 1) for n in counts)

    def values(shown: Tensor, owners: Tensor) -> Tensor:
        """Which patches are shown, bool [s, n], none first and all last -> the evidence [s, b, K]."""
        nonlocal passed
        between = []
        for part in shown[1:-1].split(chunk):
            if len(part):  # with a single patch there is nothing between none and all
                images = torch.where(part[:, owners][:, None, None], x, blank)  # [s, b, c, h, w]
                between.append(evidence(model, model(images.flatten(0, 1))).unflatten(0, (len(part), -1)))
                passed += len(part)
                progress(passed, passes)
        return torch.cat([nothing[None], *between, everything[None]])

    results = []
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
        results.append(total.transpose(0, 1))
    return results


def shapley(subsets: Tensor, values: Tensor) -> Tensor:
    """All subsets of n patches, bool [2^n, n] in the order of their binary numbers, with values [2^n, ...] -> [n, ...]:
    what each patch adds, averaged over all orders."""
    n, sizes = subsets.shape[1], subsets.sum(1).tolist()
    means = []
    for i in range(n):
        without = [s for s in range(2**n) if not subsets[s, i]]
        means.append(sum((values[s + 2**i] - values[s]) / (n * math.comb(n - 1, sizes[s])) for s in without))
    return torch.stack(means)  # type: ignore[arg-type]
