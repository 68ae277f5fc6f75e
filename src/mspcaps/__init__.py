"""A library for capsule networks, built around MSPCaps."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.data import load_dataset
    from mspcaps.evaluation import evaluate, predict
    from mspcaps.explanation import explain
    from mspcaps.export import export_model, from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import Model, list_models
    from mspcaps.models.shipped import list_pretrained, load_model
    from mspcaps.training import Recipe, Result, load_recipe

__all__ = [
    "create_model", "evaluate", "explain", "export_model", "from_pretrained", "list_models", "list_pretrained",
    "load_dataset", "load_model", "load_recipe", "predict", "push_to_hub", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# `import mspcaps` alone does not even import torch.
_HOMES = {
    "evaluate": "evaluation",
    "explain": "explanation",
    "export_model": "export",
    "from_pretrained": "export",
    "list_models": "models",
    "list_pretrained": "models.shipped",
    "load_dataset": "data",
    "load_model": "models.shipped",
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


def create_model(
    name: str,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: str | Path | None = None,
    **unknown: Any,
) -> "Model":
    """Create a model, by default an untrained one for 10 classes of 3 x 32 x 32 images.

    `pretrained` loads trained weights: the name of a data set that weights are shipped for, such as "cifar10", or the
    path of a weights file. A name that includes the data set, "mspcaps_t.cifar10", does the same.
    `mean` and `std` (per channel) are the normalisation inside the model. With `pretrained`, sizes default to those of
    the weights; if you ask for other classes, channels or sizes, the weights that fit are kept and the rest are new.
    Unchanged trained weights come in eval mode; a model with anything new in it is in training mode.
    """
    from mspcaps.errors import MspcapsError
    from mspcaps.models import create_model

    task: dict[str, Any] = {
        "num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, "mean": mean, "std": std,
    }  # fmt: skip
    _refuse_unknown("create_model", unknown, (*task, "pretrained"))
    task = {key: value for key, value in task.items() if value is not None}
    if pretrained in (None, False) and "." in name:
        name, _, pretrained = name.partition(".")
    if pretrained is None or pretrained is False:
        return create_model(name, **task)
    import torch

    from mspcaps.models.shipped import find_weights, list_pretrained, load_model
    from mspcaps.models.transfer import transfer

    if pretrained is True:
        shipped = ", ".join(shipped.partition(".")[2] for shipped in list_pretrained(f"{name}.*")) or "none"
        raise MspcapsError(
            f"pretrained is True, but must name a data set that {name} has shipped weights for: {shipped}"
        )
    path = find_weights(name, pretrained)
    trained = load_model(path)
    config = trained.config
    if config["name"] != name:
        raise MspcapsError(f"{pretrained} holds weights of {config['name']}, not of {name}")
    if in_chans is not None and in_chans != config["in_chans"]:  # what was measured was measured on other channels
        config = {key: value for key, value in config.items() if key not in ("mean", "std")}
    with torch.device("meta"):  # checks what was given, and costs nothing
        wanted = create_model(**{**config, **task}).config
    if wanted == trained.config:
        return trained
    model, about = create_model(**wanted), trained.metadata
    same = config["num_classes"] == wanted["num_classes"]
    transfer(model, path, about.get("classes", ()) if same else (), str(pretrained))
    model.metadata = {"classes": about["classes"]} if same and "classes" in about else {}
    return model


def train(recipe: "Recipe | str | Path", device: str | None = None, progress: bool = True, **options: Any) -> "Result":
    """Train a recipe (a name, the path of a TOML file, or an object); an interrupted run continues from its checkpoint.

    Options are recipe fields to change, such as `epochs=30` (changes become part of the run's name), and those of
    `Trainer`, such as `out` and `results`. `progress` shows a progress bar, or lines where there is no terminal.
    """
    import inspect
    from contextlib import nullcontext
    from dataclasses import fields

    from mspcaps.models.shipped import weights_path
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
