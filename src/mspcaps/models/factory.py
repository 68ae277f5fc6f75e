"""The two ways to get a model: `create_model` for your own task, `load_model` for the task of a weights file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.models.layers import use_channels_last
from mspcaps.models.model import TASK, ImageSize, Model
from mspcaps.models.registry import build_model, build_on_meta, check_name, registered_models
from mspcaps.models.shipped import default_weights, find_weights, list_pretrained, weights_path
from mspcaps.models.transfer import transfer
from mspcaps.models.weights_file import check_state, read_weights

USUAL = 128  # the most classes, channels or pixels a side that need no check before a model is built


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Names that match a shell pattern, sorted; with `pretrained` those of the weights that ship with the package."""
    return list_pretrained(pattern) if pretrained else registered_models(pattern)


def create_model(
    name: str,
    pretrained: bool | str | Path = False,
    *,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: ImageSize | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Model:
    """Create a model, by default an untrained one for 10 classes of 3 x 32 x 32 images.

    `pretrained` loads trained weights: True the default ones that ship with the package, the name of a data set such as
    "cifar10" those trained on it, a path those of a weights file. The name "mspcaps_t.cifar10" is short for "mspcaps_t"
    with pretrained="cifar10".
    `mean` and `std` (per channel) are the normalisation inside the model. With `pretrained`, sizes default to those of
    the weights; if you ask for other classes, channels or sizes, the weights that fit are kept and the rest are new.
    `options` are those of the family, such as patch=2 for mspcaps_t.
    A model with unchanged trained weights is in eval mode, any other one in training mode.
    """
    task: dict[str, Any] = {
        "num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, "mean": mean, "std": std,
    }  # fmt: skip
    settings = {key: value for key, value in task.items() if value is not None} | options
    if isinstance(name, str) and "." in name and isinstance(pretrained, bool):
        name, _, pretrained = name.partition(".")
    check_name(name)
    if not isinstance(pretrained, bool | str | Path):
        raise MspcapsError(
            f"pretrained is {pretrained!r:.80}, but must be True, the name of a data set or a path; give the task by "
            "keywords such as num_classes"
        )
    if pretrained is False:
        return build_model(name, **settings)
    path = default_weights(name) if pretrained is True else find_weights(name, pretrained)
    trained = load_file(path)
    config = trained.config
    if config["name"] != name:
        raise MspcapsError(f"{pretrained} holds weights of {config['name']}, not of {name}")
    if in_chans is not None and in_chans != config["in_chans"]:  # its mean and std are those of other channels
        config = {key: value for key, value in config.items() if key not in ("mean", "std")}
    requested = build_on_meta(**{**config, **settings}).config  # checks the settings at no cost
    if requested == trained.config:
        return trained
    model, metadata = build_model(**requested), trained.metadata
    same_count = config["num_classes"] == requested["num_classes"]
    transfer(model, path, metadata.get("classes", ()) if same_count else (), str(path.name))
    model.metadata = {"classes": metadata["classes"]} if same_count and "classes" in metadata else {}
    return model


def load_model(name_or_path: str | Path) -> Model:
    """Load a weights file or shipped weights by name, in eval mode; `model.metadata` has the classes and the recipe."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise MspcapsError(f"weights are named by a path or a name such as mspcaps_t.cifar10, not {name_or_path!r:.80}")
    if name_or_path in registered_models() and not Path(name_or_path).exists():
        choices = ", ".join([*list_pretrained(f"{name_or_path}.*"), "a .safetensors file"])
        raise MspcapsError(f"{name_or_path} is a model, but weights are needed here: {choices}")
    return load_file(weights_path(name_or_path))


def load_file(path: Path) -> Model:
    """The model in a weights file, in eval mode; `model.metadata` has the rest of its header."""
    header, tensors = read_weights(path)
    config = header.pop("model")
    try:
        if not is_usual(config):  # a forged header may ask for more memory than there is
            meta = build_on_meta(**config)
            check_state(meta, meta.upgrade_state(tensors), path)
        model = build_model(**config)
    except MspcapsError as error:
        raise MspcapsError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except RuntimeError as error:  # PyTorch refuses a size beyond 64 bits
        raise MspcapsError(f"{path}: {error}") from error
    tensors = model.upgrade_state(tensors)
    check_state(model, tensors, path)
    model.load_state_dict(tensors)
    use_channels_last(model)
    model.metadata = header
    return model.eval()


def is_usual(config: dict[str, Any]) -> bool:
    """Whether the sizes in a header are small for every model; checking shapes on the meta device takes a second."""
    sides = config.get("img_size")
    sizes = (config.get("num_classes"), config.get("in_chans"), *(sides if isinstance(sides, list) else [sides]))
    return config.keys() <= {"name", *TASK} and all(isinstance(n, int) and n <= USUAL for n in sizes)


def as_model(model: nn.Module | str | Path) -> nn.Module:
    """Loads a name or a path as `load_model` does; returns a model unchanged."""
    if isinstance(model, str | Path):
        return load_model(model)
    if not isinstance(model, nn.Module):
        raise MspcapsError(f"expected a model, a weights file or the name of shipped weights, not {model!r:.80}")
    return model
