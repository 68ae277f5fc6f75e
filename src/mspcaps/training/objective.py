"""The training loss: the family's own, with smoothed labels, a teacher or an adversary if the recipe says so.

Every loss of the library takes soft targets and is linear in them: the loss on smoothed labels is the expected loss if
that share of the labels were drawn at random, for the margin loss of capsules as for cross-entropy. A decoder still
reconstructs the labelled class.

With an adversary, every batch is attacked before a step learns from it. The attack runs on a twin of the model in eval
mode, as in TRADES: dropout is off and BatchNorm uses its running statistics, so the attack on one image does not depend
on the others and does not change those statistics. The step itself learns in training mode, with our kernels where we
have any; they support that mode only and are never attacked. An attack depends on (seed, epoch, step) and on the
weights alone, so a resumed run sees the same ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.losses import smooth_targets
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError, first_line
from mspcaps.evaluation.attacks import pgd_steps
from mspcaps.evaluation.attacks.objectives import cw
from mspcaps.models import Model, class_names, load_model
from mspcaps.models.layers import hash_words
from mspcaps.training.average import frozen_twin
from mspcaps.training.loader import Loader, take_batch
from mspcaps.training.recipe import Adversary, Recipe

MIN_DISTANCE = 1e-5  # of a length from 0 and 1, where its log-odds would be infinite


def make_loss(
    recipe: Recipe, model: Model, loader: Loader, key: Tensor, share: int, compiled: Callable[[Any], Any]
) -> Callable[[Model, Loader], Tensor]:
    """The loss of a recipe on the batch at the loader's position; `key` and `share` decide where attacks start."""
    if recipe.adversary:
        return RobustLoss(model, recipe.adversary, recipe.label_smoothing, key, share, compiled)
    teacher, loss = load_teacher(recipe, model, loader.classes), compiled(batch_loss)
    settings = (recipe.label_smoothing, teacher, recipe.teacher_weight, recipe.temperature)
    return lambda model, loader: loss(model, loader, *settings)


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


def as_logits(scores: Tensor, kind: str) -> Tensor:
    """Class scores [b, K] -> logits for a softmax, in fp32.

    Lengths lie in [0, 1], where a softmax could never be sure of a class; their log-odds are unbounded. For a squashed
    capsule they are twice the logarithm of its length before squashing.
    """
    scores = at_least_fp32(scores)
    return scores.clamp(MIN_DISTANCE, 1 - MIN_DISTANCE).logit() if kind == "lengths" else scores


def logits_of(model: Model, x: Tensor) -> Tensor:
    return as_logits(model(x), model.scores)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Logits p, q [b, K] -> KL(softmax(p) || softmax(q)) [b]."""
    return F.kl_div(q.log_softmax(1), p.log_softmax(1), reduction="none", log_target=True).sum(1)


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


def cross_entropy(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Summed over the images: the objective of a pgd attack."""
    return F.cross_entropy(logits_of(model, x), y, reduction="sum")


def margin(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """The score of the best other class minus that of the true one, summed: the objective of the attack on validation
    images. On capsule lengths it succeeds more often than cross-entropy does."""
    return cw(at_least_fp32(model(x)), y).sum()


def divergence(model: Model, x: Tensor, clean: Tensor) -> Tensor:
    """KL(clean answers || answers to x), summed; clean: logits [b, K]. The objective of a trades attack."""
    return kl(clean, logits_of(model, x)).sum()


def hashed_start(x: Tensor, key: Tensor, eps: float, share: int | Tensor = 0) -> Tensor:
    """Uniform within eps of x, clipped to [0, 1]: a hash of (key, pixel number), like dropout masks."""
    numbers = torch.arange(x.numel(), device=x.device) + share * x.numel()
    noise = hash_words(key, numbers).view(x.shape).float() / 2**31 - 1  # [-1, 1]
    return (x + eps * noise).clamp(0, 1)


def robust_loss(model: Model, x: Tensor, attacked: Tensor, y: Tensor, adversary: Adversary, smoothing: float) -> Tensor:
    """The training loss: images, the same images attacked, class numbers or soft targets -> scalar."""

    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        own, y = adversary.loss == "own", smooth_targets(y, scores, smoothing)
        return model.criterion(scores, y) if own else F.cross_entropy(as_logits(scores, model.scores), y)

    def with_divergence(scores: Tensor, y: Tensor) -> Tensor:
        change = kl(as_logits(scores, model.scores), logits_of(model, attacked)).mean()
        return criterion(scores, y) + adversary.beta * change

    if adversary.kind == "pgd":
        return model.training_loss(attacked, y, criterion)
    return model.training_loss(x, y, with_divergence)


class Attack:
    """The attack of one adversary on one model in eval mode, whose parameters need no gradients."""

    def __init__(
        self, model: Model, adversary: Adversary, compiled: Callable[[Any], Any], objective: Callable[..., Tensor]
    ) -> None:
        self.model, self.adversary = model, adversary
        self.start, self.logits = compiled(hashed_start), compiled(logits_of)
        self.objective, self.from_clean = compiled(objective), objective is divergence

    def __call__(self, x: Tensor, y: Tensor, key: Tensor, share: int | Tensor = 0) -> Tensor:
        """Images [b, c, h, w] in [0, 1] and their classes [b] -> the attacked images; `share` numbers the batches that
        have the same key."""
        eps, target = self.adversary.eps / 255, y
        if self.from_clean:
            with torch.no_grad():
                target = self.logits(self.model, x)
        start = self.start(x, key, eps, share)
        objective = lambda images: self.objective(self.model, images, target)  # noqa: E731
        return pgd_steps(objective, x, start, eps, self.adversary.step_size / 255, self.adversary.steps)


class RobustLoss:
    """The loss of a step that trains against an adversary, instead of `batch_loss`."""

    def __init__(
        self, model: Model, adversary: Adversary, smoothing: float, key: Tensor, share: int,
        compiled: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self.adversary, self.smoothing, self.key, self.share = adversary, smoothing, key, share
        objective = cross_entropy if adversary.kind == "pgd" else divergence
        self.attack = Attack(frozen_twin(model), adversary, compiled, objective)
        self.batch, self.loss = compiled(take_batch), compiled(robust_loss)

    def __call__(self, model: Model, loader: Loader) -> Tensor:
        x, y = self.batch(loader)
        return self.loss(model, x, self.attack(x, y, self.key, self.share), y, self.adversary, self.smoothing)
