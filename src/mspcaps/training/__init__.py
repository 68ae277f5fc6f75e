"""Recipes, `train`, the ledger, sweeps."""

from mspcaps.training.device import Engine, choose_device
from mspcaps.training.launch import Stopped, train
from mspcaps.training.ledger import Run, list_runs, read_run
from mspcaps.training.recipe import Recipe, list_recipes, load_recipe
from mspcaps.training.result import Epoch, Result
from mspcaps.training.trainer import Listener, Trainer

__all__ = [
    "Engine", "Epoch", "Listener", "Recipe", "Result", "Run", "Stopped", "Trainer", "choose_device", "list_recipes",
    "list_runs", "load_recipe", "read_run", "train",
]  # fmt: skip
