"""A library for capsule networks, built around MSPCaps."""

from typing import TYPE_CHECKING

from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.data import load_dataset
    from mspcaps.evaluation import attack, evaluate, predict
    from mspcaps.explanation import explain
    from mspcaps.export import export_model, from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import create_model, list_models, list_pretrained, load_model
    from mspcaps.training import Recipe, list_recipes, load_recipe, recipe_for, train

__all__ = [
    "Recipe", "attack", "create_model", "evaluate", "explain", "export_model", "from_pretrained", "list_models",
    "list_pretrained", "list_recipes", "load_dataset", "load_model", "load_recipe", "predict", "push_to_hub",
    "recipe_for", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# `import mspcaps` alone does not even import torch.
_NAMES = {
    "data": ("load_dataset",),
    "evaluation": ("attack", "evaluate", "predict"),
    "explanation": ("explain",),
    "export": ("export_model", "from_pretrained", "push_to_hub", "save_pretrained"),
    "models": ("create_model", "list_models", "list_pretrained", "load_model"),
    "training": ("Recipe", "list_recipes", "load_recipe", "recipe_for", "train"),
    "": ("capsules", "data", "errors", "evaluation", "explanation", "export", "models", "report", "training"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__getattr__ = lazy_attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, "__version__"})
