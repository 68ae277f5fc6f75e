"""A library for capsule networks, built around MSPCaps."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.data import load_dataset
    from mspcaps.evaluation import evaluate, predict
    from mspcaps.explanation import explain
    from mspcaps.export import export_model, from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import create_model, list_models, list_pretrained, load_model
    from mspcaps.training import Recipe, Result, load_recipe

__all__ = [
    "create_model", "evaluate", "explain", "export_model", "from_pretrained", "list_models", "list_pretrained",
    "load_dataset", "load_model", "load_recipe", "predict", "push_to_hub", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# `import mspcaps` alone does not even import torch.
_HOMES = {
    "create_model": "models",
    "evaluate": "evaluation",
    "explain": "explanation",
    "export_model": "export",
    "from_pretrained": "export",
    "list_models": "models",
    "list_pretrained": "models",
    "load_dataset": "data",
    "load_model": "models",
    "load_recipe": "training",
    "predict": "evaluation",
    "push_to_hub": "export",
    "save_pretrained": "export",
    **dict.fromkeys(("capsules", "data", "errors", "evaluation", "export", "models", "training"), ""),
}
__getattr__ = lazy_attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, "__version__"})


def _refuse_unknown(what: str, options: Iterable[str], known: Iterable[str]) -> None:
    from mspcaps.errors import MspcapsError, nearest

    known = set(known)
    for name in (option for option in options if option not in known):
        hint = nearest(name, known, f"the options are {', '.join(sorted(known))}.")
        raise MspcapsError(f"{what} has no option {name!r}: {hint}")


def train(recipe: "Recipe | str | Path", device: str | None = None, progress: bool = True, **options: Any) -> "Result":
    """Train a recipe (a name, the path of a TOML file, or an object); an interrupted run continues from its checkpoint.

    Options are recipe fields to change, such as `epochs=30` (changes become part of the run's name), and those of
    `Trainer`, such as `out` and `results`. `progress` shows a progress bar, or lines where there is no terminal.
    """
    import inspect
    from contextlib import nullcontext
    from dataclasses import fields

    from mspcaps.models import weights_path
    from mspcaps.progress import training_progress
    from mspcaps.training import Recipe, Trainer, load_recipe, override, train

    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    known = [entry.name for entry in fields(Recipe)]
    _refuse_unknown("train", options, [*known, *inspect.signature(Trainer).parameters])
    changes = {name: options.pop(name) for name in known if name in options}
    options = {"find_weights": weights_path, **({} if progress else {"say": lambda line: None}), **options}
    with training_progress() if progress and "listener" not in options else nullcontext() as listener:
        if listener is not None:
            options["listener"] = lambda trainer: listener(trainer) if trainer.world.is_main else None
        return train(override(recipe, **changes), device, **options)
