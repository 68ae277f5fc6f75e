"""Recipes, `train`, the ledger, sweeps."""

from typing import TYPE_CHECKING

from mspcaps.lazy import lazy_attributes
from mspcaps.training.recipe import Recipe, list_recipes, load_recipe

if TYPE_CHECKING:
    from mspcaps.training.device import Engine, choose_device
    from mspcaps.training.images import recipe_for
    from mspcaps.training.launch import Stopped, train
    from mspcaps.training.ledger import Run, list_runs, read_run
    from mspcaps.training.result import Epoch, Result
    from mspcaps.training.trainer import Listener, Trainer

__all__ = [
    "Engine", "Epoch", "Listener", "Recipe", "Result", "Run", "Stopped", "Trainer", "choose_device", "list_recipes",
    "list_runs", "load_recipe", "read_run", "recipe_for", "train",
]  # fmt: skip

# These need torch; recipes do not.
_HOMES = {
    "Engine": "device", "Epoch": "result", "Listener": "trainer", "Result": "result", "Run": "ledger",
    "Stopped": "launch", "Trainer": "trainer", "choose_device": "device", "list_runs": "ledger", "read_run": "ledger",
    "recipe_for": "images", "train": "launch",
}  # fmt: skip
__getattr__ = lazy_attributes(__name__, _HOMES)
