"""The training loss: the family's own, with smoothed labels and a teacher if the recipe says so.

Every loss of the library takes soft targets and is linear in them: the loss on smoothed labels is the expected loss if
that share of the labels were drawn at random, for the margin loss of capsules as for cross-entropy. A decoder still
reconstructs the labelled class.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mspcaps.capsules.losses import smooth_targets
from mspcaps.errors import MspcapsError, first_line
from mspcaps.models import Model, class_names, load_model
from mspcaps.training.adversary import as_logits, kl, logits_of
from mspcaps.training.loader import Loader, take_batch
from mspcaps.training.recipe import Recipe


def batch_loss(
    model: Model, loader: Loader, smoothing: float = 0.0, teacher: Model | None = None, weight: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """The loss on the batch at the loader's position -> scalar.

    With a teacher it is (1 - weight) times the model's own loss plus weight T^2 KL(teacher || model), both softened by
    the temperature T; T^2 keeps the size of the gradients. The teacher sees the same augmented and mixed images. For
    capsule lengths, log-odds are compared.
    """
    x, y = take_batch(loader)
    target = logits_of(teacher, x) / temperature if teacher is not None else None

    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        loss = model.criterion(scores, smooth_targets(y, scores, smoothing))
        if target is None:
            return loss
        distance = kl(target, as_logits(scores, model.scores) / temperature).mean()
        return (1 - weight) * loss + weight * temperature**2 * distance

    return model.training_loss(x, y, criterion)


class Objective:
    """The training loss of a recipe without an adversary."""

    def __init__(self, recipe: Recipe, teacher: Model | None, compiled: Callable[[Any], Any]) -> None:
        self.loss = compiled(batch_loss)
        self.settings = (recipe.label_smoothing, teacher, recipe.teacher_weight, recipe.temperature)

    def __call__(self, model: Model, loader: Loader) -> Tensor:
        return self.loss(model, loader, *self.settings)


def check_soft_targets(recipe: Recipe, model: Model, loader: Loader) -> None:
    """Refuse smoothed and mixed labels if the model's loss, which may be custom, takes only class numbers."""
    fields = {"label_smoothing": recipe.label_smoothing, "augment.mixup": loader.augment.mixup}
    scores = torch.full((2, len(loader.classes)), 0.5, device=loader.images.device)  # where the loss may have weights
    for field, value in fields.items():
        try:
            if value:
                model.criterion(scores, scores.softmax(1))
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise MspcapsError(
                f"{field} is {value}, but the loss of {model.config['name']} takes no soft targets "
                f"({first_line(error)}): leave it at 0"
            ) from error


def load_teacher(recipe: Recipe, model: Model, classes: Sequence[str]) -> Model | None:
    """The recipe's teacher, if any, in eval mode on the model's device; it must take the same images and classes."""
    if not recipe.teacher:
        return None
    teacher = load_model(recipe.teacher)
    theirs, ours = (" x ".join(map(str, (network.in_chans, *network.img_size))) for network in (teacher, model))
    if theirs != ours:
        raise MspcapsError(
            f"the teacher {recipe.teacher} takes images of {theirs} (channels, height, width), but the training images "
            f"are {ours}: name a teacher that was trained on such images"
        )
    if class_names(teacher) != tuple(classes):
        raise MspcapsError(
            f"the teacher {recipe.teacher} has the classes {', '.join(class_names(teacher)):.80}, but the training "
            f"images have {', '.join(classes):.80}: name a teacher that was trained on the same classes in this order"
        )
    return teacher.to(next(model.parameters()).device).requires_grad_(False)
