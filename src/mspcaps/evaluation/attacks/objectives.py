"""What an attack ascends: scores [b, K] and the labels to lead away from, int64 [b] -> one loss per image [b].

Scores are logits or capsule lengths (`Model.scores`), and every objective takes both as they are. Cross-entropy treats
lengths as if they were logits: they lie within [0, 1], so that its softmax is never saturated and its gradient never
zero, though it is no likelihood then. `margin` is the loss that capsules are trained with and the only one with flat
parts: exactly zero, with its gradient, where the true capsule is longer than 0.9 and all others are shorter than 0.1.
That is where the model is surest, so robustness measured with `margin` alone is partly the silence of the objective.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.losses import margin_losses
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError

Objective = Callable[[Tensor, Tensor], Tensor]


def margin(scores: Tensor, y: Tensor) -> Tensor:
    """The margin loss of CapsNet, of each image."""
    return margin_losses(scores, y)


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """-log softmax(scores)[y]"""
    return F.cross_entropy(at_least_fp32(scores), y, reduction="none")


def cw(scores: Tensor, y: Tensor) -> Tensor:
    """The highest score of another class less that of the true one (Carlini and Wagner, 2017): above 0 is fooled."""
    return runner_up(scores, y) - true_score(scores, y)


def dlr(scores: Tensor, y: Tensor) -> Tensor:
    """The difference of logits ratio of AutoAttack: `cw` over the span of the highest and the third highest score.

    Neither adding to the scores nor multiplying them changes it. Takes three classes at least.
    """
    ordered = scores.sort(dim=1, descending=True).values  # [b, K]
    return cw(scores, y) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def targeted_dlr(scores: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """AutoAttack's ratio towards one class: (z_target - z_y) / (z_1 - (z_3 + z_4) / 2). Takes four classes at least."""
    ordered = scores.sort(dim=1, descending=True).values
    span = ordered[:, 0] - 0.5 * (ordered[:, 2] + ordered[:, 3]) + 1e-12
    return (true_score(scores, target) - true_score(scores, y)) / span


def true_score(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(1, y[:, None]).squeeze(1)


def runner_up(scores: Tensor, y: Tensor) -> Tensor:
    """The highest score of any class but y."""
    own = F.one_hot(y, scores.shape[1]).bool()
    return scores.masked_fill(own, -torch.inf).amax(1)


OBJECTIVES: dict[str, Objective] = {"margin": margin, "cross_entropy": cross_entropy, "cw": cw, "dlr": dlr}
CLASSES = {"dlr": 3, "targeted_dlr": 4}  # fewer leave nothing to divide by


def find_objective(name: str, classes: int) -> Objective:
    """By name; refuses one that is unknown or that needs more classes."""
    if name not in OBJECTIVES:
        raise MspcapsError(f"unknown objective {name!r}: choose one of {', '.join(OBJECTIVES)}")
    check_classes(name, classes)
    return OBJECTIVES[name]


def check_classes(name: str, classes: int) -> None:
    if classes < CLASSES.get(name, 2):
        raise MspcapsError(
            f"{name} compares {CLASSES.get(name, 2)} scores, but the model has {classes} classes: use cross_entropy"
        )
