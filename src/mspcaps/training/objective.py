"""What a step descends: the family's own loss, with smoothed labels and beside a teacher if the recipe says so.

Every loss of the library takes soft targets and is linear in them: with smoothed labels it is the loss that one expects
if that share of the labels were drawn at random, for the margin loss of capsules as for cross-entropy. A decoder still
draws what the label says.
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

    With a teacher it is (1 - weight) of the model's own loss and weight T^2 KL(teacher || model), both softened by the
    temperature T; T^2 keeps the gradients as large as without it. The teacher sees the same images, augmented and mixed
    as they are; of capsule lengths the log-odds are compared.
    """
    x, y = take_batch(loader)
    taught = logits_of(teacher, x) / temperature if teacher is not None else None

    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        loss = model.criterion(scores, smooth_targets(y, scores, smoothing))
        if taught is None:
            return loss
        apart = kl(taught, as_logits(scores, model.scores) / temperature).mean()
        return (1 - weight) * loss + weight * temperature**2 * apart

    return model.training_loss(x, y, criterion)


class Objective:
    """The loss of the steps of a recipe that has no adversary."""

    def __init__(self, recipe: Recipe, teacher: Model | None, compiled: Callable[[Any], Any]) -> None:
        self.loss = compiled(batch_loss)
        self.settings = (recipe.label_smoothing, teacher, recipe.teacher_weight, recipe.temperature)

    def __call__(self, model: Model, loader: Loader) -> Tensor:
        return self.loss(model, loader, *self.settings)


def check_soft_targets(recipe: Recipe, model: Model, loader: Loader) -> None:
    """Refuses smoothed and mixed labels if the model's loss, which may be somebody's own, takes class numbers only."""
    fields = {"label_smoothing": recipe.label_smoothing, "augment.mixup": loader.augment.mixup}
    scores = torch.full((2, len(loader.classes)), 0.5, device=loader.images.device)  # a loss may have weights there
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
    """The recipe's teacher in eval mode on the device of the model, if it knows the same images and classes."""
    if not recipe.teacher:
        return None
    teacher = load_model(recipe.teacher)
    theirs, ours = ((one.in_chans, *one.img_size) for one in (teacher, model))
    if theirs != ours:
        sizes = (" x ".join(map(str, shape)) for shape in (theirs, ours))
        raise MspcapsError(
            "the teacher {} takes images of {} (channels, height, width), but those to learn from are {}: name a "
            "teacher that was trained on such images".format(recipe.teacher, *sizes)
        )
    if class_names(teacher) != tuple(classes):
        raise MspcapsError(
            f"the teacher {recipe.teacher} names the classes {', '.join(class_names(teacher)):.80}, but they are "
            f"{', '.join(classes):.80}: name a teacher that was trained on the same classes in the same order"
        )
    return teacher.to(next(model.parameters()).device).requires_grad_(False)
