"""The learning rate of every epoch: a linear warm-up, then one of four schedules, constant within an epoch."""

import math
from bisect import bisect_right

from mspcaps.training.recipe import Recipe


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """The rate in epoch 0, 1, ...: from warmup_start * lr to lr over the warm-up, then as the schedule says."""
    if epoch < recipe.warmup:
        return recipe.lr * (recipe.warmup_start + (1 - recipe.warmup_start) * epoch / recipe.warmup)
    if recipe.schedule == "cosine":  # reaches min_lr in the epoch after the last
        progress = (epoch - recipe.warmup) / (recipe.epochs - recipe.warmup)
        return recipe.min_lr + (recipe.lr - recipe.min_lr) * (1 + math.cos(math.pi * progress)) / 2
    if recipe.schedule == "constant":
        return recipe.lr
    # exponential counts epochs from the end of the warm-up, steps from the start of the run
    steps = bisect_right(recipe.lr_steps, epoch) if recipe.schedule == "steps" else epoch - recipe.warmup
    return max(recipe.lr * recipe.lr_gamma**steps, min(recipe.lr, recipe.min_lr))


def learning_rates(recipe: Recipe) -> list[float]:
    """The rates of all epochs."""
    return [learning_rate(recipe, epoch) for epoch in range(recipe.epochs)]
