"""A library for capsule networks, built around MSPCaps."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mspcaps.data import load_dataset
    from mspcaps.evaluation import evaluate
    from mspcaps.evaluation.predict import predict
    from mspcaps.explanation import explain
    from mspcaps.export import from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import create_model, list_models, list_pretrained, load_model
    from mspcaps.training import Recipe, Result

__all__ = [
    "create_model", "evaluate", "explain", "from_pretrained", "list_models", "list_pretrained", "load_dataset",
    "load_model", "predict", "push_to_hub", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# Loaded at first use: `import mspcaps` itself does not even import torch.
_HOMES = {
    "create_model": "mspcaps.models",
    "evaluate": "mspcaps.evaluation",
    "explain": "mspcaps.explanation",
    "from_pretrained": "mspcaps.export",
    "list_models": "mspcaps.models",
    "list_pretrained": "mspcaps.models",
    "load_dataset": "mspcaps.data",
    "load_model": "mspcaps.models",
    "predict": "mspcaps.evaluation",
    "push_to_hub": "mspcaps.export",
    "save_pretrained": "mspcaps.export",
}
_ROOMS = ("capsules", "data", "errors", "evaluation", "export", "models", "pictures", "training")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:  # whether or not anything has imported it before
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])


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
