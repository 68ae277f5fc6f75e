"""What is on these pictures? Answers of a model for single files and whole folders."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import all_scores
from mspcaps.models import as_model, class_names, config_of
from mspcaps.pictures import Prediction, stream_answers


def predict(
    model: nn.Module | str | Path, paths: Iterable[str | Path] | str | Path, top: int = 3, batch_size: int = 64
) -> list[Prediction]:
    """One prediction per picture, in order; a folder means all pictures below it. Broken files do not stop it.

    `model` may also be anything that `load_model` accepts. Untrained models have numbers as class names.
    """
    return list(stream_predictions(model, paths, top, batch_size))


def stream_predictions(
    model: nn.Module | str | Path, paths: Iterable[str | Path] | str | Path, top: int = 3, batch_size: int = 64
) -> Iterator[Prediction]:
    """As `predict`, but the first answers are there while later pictures are still to be read."""
    asked = as_model(model)
    config, classes = config_of(asked), class_names(asked)
    paths = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    if odd := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise MspcapsError(
            f"predict takes paths, not {type(odd[0]).__name__}: pass images in memory to model(x); "
            "mspcaps.pictures.read_picture converts pictures that Pillow has open"
        )

    def ask(images: np.ndarray) -> np.ndarray:
        return all_scores(asked, torch.from_numpy(images), len(images)).numpy()

    yield from stream_answers(ask, paths, config["img_size"], config["in_chans"], classes, top, batch_size)
