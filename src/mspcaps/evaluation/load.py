"""Load a data set in the form that a trained model takes: image size, channels and numbering of classes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mspcaps.data import CATALOG, ImageSet, load_dataset, open_folder
from mspcaps.data.folder import is_picture_folder
from mspcaps.errors import MspcapsError, warn
from mspcaps.files import ProgressFn, no_progress
from mspcaps.models import config_of, unwrapped


def trained_on(model: nn.Module) -> str | None:
    """The name or path of the data that the model was trained on, as in its recipe; None if it does not say."""
    recipe = getattr(unwrapped(model), "metadata", {}).get("recipe") or {}
    return recipe.get("data")


def load_for(
    model: nn.Module,
    name_or_path: str | Path | None = None,
    split: str = "test",
    progress: ProgressFn = no_progress,
    option: str = "--data",
    skip_broken: bool = False,
    tell: Callable[[str], None] = warn,
) -> ImageSet:
    """Load images in the form the model takes; default: the data it was trained on. `model` comes from `load_model`.

    `progress` is called for every picture read from a folder; error messages name `option` as the way to choose data.
    With `skip_broken`, pictures that cannot be read are left out, and `tell` receives a sentence about them.
    """
    model = unwrapped(model)
    config = config_of(model)
    if name_or_path is None:
        name_or_path = trained_on(model)
        if name_or_path is None:
            raise MspcapsError(f"the weights do not say which data they were trained on: name a data set with {option}")
        if name_or_path not in CATALOG and not Path(name_or_path).expanduser().exists():
            raise MspcapsError(
                f"the weights were trained on {name_or_path}, which does not exist here: give its path with {option}"
            )
    if is_picture_folder(name_or_path):
        # test pictures may all be grey although training pictures were not
        pictures = open_folder(Path(name_or_path).expanduser(), split, config["img_size"])
        pictures = replace(pictures, channels=config["in_chans"])
        data = (pictures.readable(tell, progress) if skip_broken else pictures).resident(progress)
    else:
        data = load_dataset(name_or_path, split, config["img_size"])
    return renumber(data, getattr(model, "metadata", {}).get("classes"))


def renumber(data: ImageSet, classes: list[str] | None) -> ImageSet:
    """Number the labels as the model does, by class name; the data may lack some of the classes."""
    if classes is None or tuple(classes) == data.classes:
        return data
    if unknown := [name for name in data.classes if name not in classes]:
        raise MspcapsError(
            f"{data.name} has a class {unknown[0]!r} that the model does not know: its classes are {', '.join(classes)}"
        )
    table = torch.tensor([classes.index(name) for name in data.classes])
    return replace(data, labels=table[data.labels], classes=tuple(classes))
