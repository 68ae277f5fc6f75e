"""The reference library for capsule networks, built around MSPCaps."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from mspcaps.data import load_dataset
    from mspcaps.evaluation import evaluate, predict
    from mspcaps.explain import explain
    from mspcaps.export import from_pretrained, push_to_hub, save_pretrained
    from mspcaps.models import list_models
    from mspcaps.training import Recipe, Result
    from mspcaps.weights import list_pretrained, load_model

__all__ = [
    "create_model", "evaluate", "explain", "from_pretrained", "list_models", "list_pretrained", "load_dataset",
    "load_model", "predict", "push_to_hub", "save_pretrained", "train",
]  # fmt: skip
__version__ = "0.1.0"

# Loaded at first use: `import mspcaps` itself does not even import torch.
_HOMES = {
    "evaluate": "mspcaps.evaluation",
    "explain": "mspcaps.explain",
    "from_pretrained": "mspcaps.export",
    "list_models": "mspcaps.models",
    "list_pretrained": "mspcaps.weights",
    "load_dataset": "mspcaps.data",
    "load_model": "mspcaps.weights",
    "predict": "mspcaps.evaluation",
    "push_to_hub": "mspcaps.export",
    "save_pretrained": "mspcaps.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def create_model(
    name: str,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: str | Path | None = None,
) -> "nn.Module":
    """A new model for 10 classes of 3 x 32 x 32 images unless told otherwise, or with `pretrained` a trained one.

    `pretrained` is a data set whose weights come with the package, such as "cifar10", or the path of a weights file.
    mean and std per channel are the normalisation inside the model. A weights file knows its own sizes; whatever is
    named here besides must agree with it.
    """
    task = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, "mean": mean, "std": std}
    task = {key: value for key, value in task.items() if value is not None}
    if pretrained is None:
        from mspcaps.models import create_model

        return create_model(name, **task)  # type: ignore[arg-type]
    from mspcaps.errors import MspcapsError
    from mspcaps.weights import find_weights, load_model

    model = load_model(find_weights(name, pretrained))
    if isinstance(img_size, int):
        task["img_size"] = (img_size, img_size)
    for key, value in {"name": name, **task}.items():
        held = model.config[key]  # type: ignore[index]
        if held != value and not (isinstance(value, Sequence) and list(held) == list(value)):
            raise MspcapsError(f"{pretrained} holds a model whose {key} is {held}, not {value}")
    return model


def train(recipe: "Recipe | str", device: str | None = None, **options: Any) -> "Result":
    """Train a recipe, by name, TOML path or object, from its checkpoint if there is one; options as for `Trainer`.

    Its `init` may name weights that come with the package.
    """
    from mspcaps.training import train
    from mspcaps.weights import weights_path

    return train(recipe, device, **{"find_weights": weights_path, **options})
