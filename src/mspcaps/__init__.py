"""A library for capsule networks, built around MSPCaps."""

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from mspcaps.data import load_dataset
    from mspcaps.evaluation import evaluate
    from mspcaps.evaluation.predict import predict
    from mspcaps.explanation import explain
    from mspcaps.export import from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import Model, MSPCapsName, list_models
    from mspcaps.models.mspcaps import MSPCaps
    from mspcaps.models.shipped import list_pretrained, load_model
    from mspcaps.training import Recipe, list_recipes, load_recipe, train

__all__ = [
    "Recipe", "create_model", "evaluate", "explain", "from_pretrained", "list_models", "list_pretrained",
    "list_recipes", "load_dataset", "load_model", "load_recipe", "predict", "push_to_hub", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# Loaded at first use: `import mspcaps` itself does not even import torch.
_HOMES = {
    "Recipe": "mspcaps.training",
    "evaluate": "mspcaps.evaluation",
    "explain": "mspcaps.explanation",
    "from_pretrained": "mspcaps.export",
    "list_models": "mspcaps.models",
    "list_pretrained": "mspcaps.models.shipped",
    "list_recipes": "mspcaps.training",
    "load_dataset": "mspcaps.data",
    "load_model": "mspcaps.models.shipped",
    "load_recipe": "mspcaps.training",
    "predict": "mspcaps.evaluation",
    "push_to_hub": "mspcaps.export",
    "save_pretrained": "mspcaps.export",
    "train": "mspcaps.training",
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


@overload
def create_model(
    name: "MSPCapsName",
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: str | Path | None = None,
) -> "MSPCaps": ...
@overload
def create_model(
    name: str,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: str | Path | None = None,
) -> "Model": ...
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
