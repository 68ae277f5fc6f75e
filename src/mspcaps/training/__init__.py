"""Recipes, the trainer, sweeps."""

from typing import Any

from mspcaps.errors import MspcapsError
from mspcaps.training.recipe import Recipe, list_recipes, load_recipe, override, recipe_from_dict
from mspcaps.training.setup import choose_device
from mspcaps.training.trainer import Epoch, Result, Trainer

__all__ = [
    "Epoch", "Recipe", "Result", "Stopped", "Trainer", "choose_device", "list_recipes", "load_recipe", "override",
    "recipe_from_dict", "train",
]  # fmt: skip


class Stopped(MspcapsError):
    """A run that was told to stop."""


def train(recipe: Recipe | str, device: str | None = None, **options: Any) -> Result:
    """Train a recipe, by name, TOML path or object, from its checkpoint if there is one; options as for `Trainer`."""
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    result = Trainer(recipe, choose_device(device), **options).run()
    if result is None:
        raise Stopped("the run was stopped before its end; its checkpoint is kept")
    return result
