"""What no run can have: numbers of a recipe out of range, or fields that contradict each other."""

import math
from typing import TYPE_CHECKING

from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.models.model import TASK

if TYPE_CHECKING:
    from mspcaps.training.recipe import Recipe

MAX_IMG_SIZE = 2048  # pixels a side; more than that is a typing error


def check_numbers(recipe: "Recipe") -> None:
    """Refuse them with the value and the reason."""
    least_values = {"epochs": 1, "batch_size": 2}
    least_values |= dict.fromkeys(("warmup_epochs", "validation", "patience", "held_out", "folds", "fold", "seed"), 0)
    for name, least in least_values.items():
        if (value := getattr(recipe, name)) is not None and value < least:
            raise MspcapsError(f"{name} is {value}, but must be at least {least}")
    for name in ("lr", "weight_decay", "min_lr", "warmup_start", "clip_grad", "lr_gamma", "momentum", "muon_lr"):
        if not 0 <= getattr(recipe, name) < math.inf:
            raise MspcapsError(f"{name} is {getattr(recipe, name)}, but must be a non-negative number")
    for name in ("warmup_start", "lr_gamma", "momentum"):
        if getattr(recipe, name) > 1:
            raise MspcapsError(f"{name} is {getattr(recipe, name)}, but must be at most 1")
    if recipe.lr == 0 or recipe.min_lr > recipe.lr:
        raise MspcapsError(f"lr is {recipe.lr}, but must be above 0 and not below min_lr, which is {recipe.min_lr}")
    if taken := sorted(recipe.options.keys() & {*TASK, "pretrained"}):
        raise MspcapsError(
            f"options has {taken[0]}, which is no option of the model's family: "
            + ("the recipe's init names initial weights" if taken[0] == "pretrained" else "it follows from the images")
        )
    check_validation(recipe, own=recipe.data not in CATALOG)  # one's own images may include some for validation
    if recipe.folds == 1 or bool(recipe.folds) != bool(recipe.fold) or recipe.fold > recipe.folds:
        raise MspcapsError(
            f"fold is {recipe.fold} and folds is {recipe.folds}, but there must be at least two folds, and fold must "
            "be one of them, counted from 1"
        )
    if recipe.folds and recipe.held_out:
        raise MspcapsError(
            f"held_out is {recipe.held_out} and folds is {recipe.folds}: a run is measured on one or the other, so "
            "leave one at 0"
        )
    if not 0 <= recipe.ema < 1:
        raise MspcapsError(f"ema is {recipe.ema}, but must be at least 0 and below 1: 0.999 is usual")
    if not 0 <= recipe.label_smoothing < 1:
        raise MspcapsError(
            f"label_smoothing is {recipe.label_smoothing}, but must be at least 0 and below 1: 0.1 is usual"
        )
    if not 0 < recipe.teacher_weight <= 1:
        raise MspcapsError(f"teacher_weight is {recipe.teacher_weight}, but must be above 0 and at most 1")
    if not 0 < recipe.temperature < math.inf:
        raise MspcapsError(f"temperature is {recipe.temperature}, but must be a positive number")
    for name in ("teacher_weight", "temperature"):
        if not recipe.teacher and getattr(recipe, name) != getattr(type(recipe), name):
            raise MspcapsError(f"{name} is {getattr(recipe, name)}, but there is no teacher: name one, or leave it out")
    if recipe.teacher and recipe.adversary:
        raise MspcapsError(
            f"teacher is {recipe.teacher}, but the recipe has an adversary: a run learns from one or against the "
            "other, so leave one out"
        )
    if recipe.img_size is not None and not 1 <= recipe.img_size <= MAX_IMG_SIZE:
        raise MspcapsError(f"img_size is {recipe.img_size}, but must lie between 1 and {MAX_IMG_SIZE}")
    if recipe.seed >= 2**63:
        raise MspcapsError(f"seed is {recipe.seed}, but must be less than 2^63")
    if recipe.nesterov and (recipe.optimizer != "sgd" or not recipe.momentum):
        raise MspcapsError("nesterov is for SGD with momentum: set optimizer to sgd and momentum above 0")
    if (recipe.schedule == "steps") != bool(recipe.lr_steps):
        raise MspcapsError(f"lr_steps is {list(recipe.lr_steps)}, but the schedule {recipe.schedule} " + (
            "needs at least one" if recipe.schedule == "steps" else "has none: set schedule to steps"
        ))  # fmt: skip
    if list(recipe.lr_steps) != sorted({step for step in recipe.lr_steps if 0 < step < recipe.epochs}):
        raise MspcapsError(
            f"lr_steps is {list(recipe.lr_steps)}, but must be epochs in rising order between 1 and {recipe.epochs - 1}"
        )


def check_validation(recipe: "Recipe", own: bool) -> None:
    """Refuse a recipe that needs validation images but has none; `own`: the data set has some of its own."""
    if recipe.adversary and not (recipe.validation or own):
        raise MspcapsError(
            "validation is 0, but with an adversary the epoch must be chosen, since robust accuracy falls again in "
            "long runs: set validation to 1000, or to a tenth of a small training set"
        )
    if recipe.patience and not (recipe.validation or own):
        raise MspcapsError(
            f"patience is {recipe.patience}, but there are no validation images to tell whether an epoch is better: "
            "set validation to a tenth of the training images"
        )
