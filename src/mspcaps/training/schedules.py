"""The paper's learning rate: linear warm-up, then cosine, constant within an epoch."""

import math

from mspcaps.training.recipe import Recipe


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Of epoch 0, 1, ...: linear warm-up from warmup_start * lr over warmup_epochs, then cosine decay to min_lr."""
    if epoch < recipe.warmup_epochs:
        return recipe.lr * (recipe.warmup_start + (1 - recipe.warmup_start) * epoch / recipe.warmup_epochs)
    progress = (epoch - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)
    return recipe.min_lr + (recipe.lr - recipe.min_lr) * (1 + math.cos(math.pi * progress)) / 2
