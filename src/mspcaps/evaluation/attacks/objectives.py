"""What an attack maximises: scores [b, K] and the labels to lead away from, int64 [b] -> one loss per image [b].

Scores are logits or capsule lengths (`Model.scores`), and all objectives but one take both as they are. Cross-entropy
treats lengths as logits: within [0, 1] its softmax never saturates, but squash does, and a long capsule hardly moves.
`log_odds` undoes squash first, log(l / (1 - l)) = log |s|^2, so that long and short capsules count alike: for lengths
it is the strongest objective here. `margin` is the loss that capsules are trained with and the only one with flat
parts: loss and gradient are exactly zero where the true capsule is longer than 0.9 and all others are shorter than 0.1.
That is where the model is most confident, so robustness measured with `margin` alone partly measures missing gradients.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.losses import margin_losses
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError
from mspcaps.models import unwrapped

Objective = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """-log softmax(scores)[y]"""
    return F.cross_entropy(at_least_fp32(scores), y, reduction="none")


def log_odds(scores: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of log(l / (1 - l)), for capsule lengths l."""
    lengths = at_least_fp32(scores).clamp(1e-6, 1 - 1e-6)
    return F.cross_entropy((lengths / (1 - lengths)).log(), y, reduction="none")


def cw(scores: Tensor, y: Tensor) -> Tensor:
    """The highest score of another class minus that of the true class (Carlini and Wagner, 2017): above 0 is fooled."""
    return runner_up(scores, y) - true_score(scores, y)


def dlr(scores: Tensor, y: Tensor) -> Tensor:
    """AutoAttack's difference of logits ratio: `cw` over the gap between the highest and the third highest score.

    Shifting or scaling the scores does not change it. Needs at least three classes.
    """
    ordered = scores.sort(dim=1, descending=True).values  # [b, K]
    return cw(scores, y) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def targeted_dlr(scores: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """AutoAttack's ratio towards one class: (z_target - z_y) / (z_1 - (z_3 + z_4) / 2). Needs at least four classes."""
    ordered = scores.sort(dim=1, descending=True).values
    span = ordered[:, 0] - 0.5 * (ordered[:, 2] + ordered[:, 3]) + 1e-12
    return (true_score(scores, target) - true_score(scores, y)) / span


def true_score(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(1, y[:, None]).squeeze(1)


def runner_up(scores: Tensor, y: Tensor) -> Tensor:
    """The highest score of any class but y."""
    return scores.scatter(1, y[:, None], -torch.inf).amax(1)


OBJECTIVES: dict[str, Objective] = {
    "margin": margin_losses, "cross_entropy": cross_entropy, "log_odds": log_odds, "cw": cw, "dlr": dlr,
}  # fmt: skip
MIN_CLASSES = {"dlr": 3, "targeted_dlr": 4}  # with fewer there is no span to divide by


def find_objective(name: str, model: nn.Module, classes: int) -> Objective:
    """The objective of this name; refuses one that does not exist or does not suit the scores of the model."""
    if name not in OBJECTIVES:
        raise MspcapsError(f"unknown objective {name!r}: choose one of {', '.join(OBJECTIVES)}")
    if name == "log_odds" and not has_lengths(model):
        raise MspcapsError(
            f"log_odds is for capsule lengths, but {type(model).__name__} gives logits: use cross_entropy"
        )
    check_classes(name, classes)
    return OBJECTIVES[name]


def has_lengths(model: nn.Module) -> bool:
    """Whether its scores are the lengths of capsules."""
    return getattr(unwrapped(model), "scores", "logits") == "lengths"


def check_classes(name: str, classes: int) -> None:
    if classes < (needed := MIN_CLASSES.get(name, 2)):
        raise MspcapsError(f"{name} compares {needed} scores, but the model has {classes} classes: use cross_entropy")
