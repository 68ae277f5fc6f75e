"""Limits of a recipe: numbers that are out of range, and fields that contradict each other, are refused."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError

if TYPE_CHECKING:
    from mspcaps.training.recipe import Recipe

MAX_IMG_SIZE = 2048  # pixels per side; more than that is a typing error

# fields, a test of their value, and the same in words
RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("warmup_epochs", "validation", "patience", "held_out", "folds", "fold"), lambda n: n >= 0, "at least 0"),
    (("epochs",), lambda n: n >= 1, "at least 1"),
    (("batch_size",), lambda n: n >= 2, "at least 2"),
    (("seed",), lambda n: 0 <= n < 2**63, "at least 0 and below 2^63"),
    (("img_size",), lambda n: 1 <= n <= MAX_IMG_SIZE, f"between 1 and {MAX_IMG_SIZE}"),
    (("weight_decay", "min_lr", "clip_grad", "muon_lr"), lambda x: 0 <= x < math.inf, "a non-negative number"),
    (("lr", "temperature"), lambda x: 0 < x < math.inf, "a positive number"),
    (("warmup_start", "lr_gamma", "momentum"), lambda x: 0 <= x <= 1, "at least 0 and at most 1"),
    (("teacher_weight",), lambda x: 0 < x <= 1, "above 0 and at most 1"),
    (("ema",), lambda x: 0 <= x < 1, "at least 0 and below 1: 0.999 is usual"),
    (("label_smoothing",), lambda x: 0 <= x < 1, "at least 0 and below 1: 0.1 is usual"),
)


def check_numbers(recipe: "Recipe") -> None:
    """Refuse values out of range, then fields that do not go together."""
    for names, fits, words in RANGES:
        for name in names:
            if (value := getattr(recipe, name)) is not None and not fits(value):
                raise MspcapsError(f"{name} is {value}, but must be {words}")
    check_fields_together(recipe)


def check_options(options: dict[str, Any]) -> None:
    """Refuse options that are not the family's to choose."""
    from mspcaps.models.model import TASK  # imports torch, which recipes do without

    if reserved := sorted(options.keys() & {*TASK, "pretrained"}):
        remedy = "name initial weights with init" if reserved[0] == "pretrained" else "it follows from the images"
        raise MspcapsError(f"options has {reserved[0]}, which is not an option of the model's family: {remedy}")


def check_fields_together(recipe: "Recipe") -> None:
    """Refuse values that are valid on their own but not in combination."""
    if recipe.min_lr > recipe.lr:
        raise MspcapsError(f"lr is {recipe.lr}, but must not be below min_lr, which is {recipe.min_lr}")
    if recipe.options:
        check_options(recipe.options)
    check_validation(recipe, own=recipe.data not in CATALOG)  # custom data may have a validation split
    if recipe.folds == 1 or bool(recipe.folds) != bool(recipe.fold) or recipe.fold > recipe.folds:
        raise MspcapsError(
            f"fold is {recipe.fold} and folds is {recipe.folds}, but folds must be at least 2 and fold one of them, "
            "counted from 1"
        )
    if recipe.folds and recipe.held_out:
        raise MspcapsError(
            f"held_out is {recipe.held_out} and folds is {recipe.folds}, but a run is measured on one or the other: "
            "leave one of them at 0"
        )
    for name in ("teacher_weight", "temperature"):
        if not recipe.teacher and getattr(recipe, name) != getattr(type(recipe), name):
            raise MspcapsError(f"{name} is {getattr(recipe, name)}, but there is no teacher: name one, or leave it out")
    if recipe.teacher and recipe.adversary:
        raise MspcapsError(
            f"teacher is {recipe.teacher}, but the recipe also has an adversary: a run learns from the one or against "
            "the other, so leave one out"
        )
    if recipe.nesterov and (recipe.optimizer != "sgd" or not recipe.momentum):
        raise MspcapsError("nesterov is for SGD with momentum: set optimizer to sgd and momentum above 0")
    if (recipe.schedule == "steps") != bool(recipe.lr_steps):
        raise MspcapsError(f"lr_steps is {list(recipe.lr_steps)}, but the schedule {recipe.schedule} " + (
            "needs at least one" if recipe.schedule == "steps" else "takes none: set schedule to steps"
        ))  # fmt: skip
    if list(recipe.lr_steps) != sorted({step for step in recipe.lr_steps if 0 < step < recipe.epochs}):
        raise MspcapsError(
            f"lr_steps is {list(recipe.lr_steps)}, but must be epochs between 1 and {recipe.epochs - 1} in rising order"
        )


def check_validation(recipe: "Recipe", own: bool) -> None:
    """Refuse a recipe that needs validation images but has none; `own`: the data set has a validation split."""
    if recipe.adversary and not (recipe.validation or own):
        raise MspcapsError(
            "validation is 0, but with an adversary the best epoch must be chosen, since robust accuracy declines in "
            "long runs: set validation to 1000, or to a tenth of a small training set"
        )
    if recipe.patience and not (recipe.validation or own):
        raise MspcapsError(
            f"patience is {recipe.patience}, but there are no validation images to tell whether an epoch is better: "
            "set validation to a tenth of the training images"
        )
