"""The classes of picture files, single ones and whole folders, by any model that takes a batch of images.

torch is imported only for a model in PyTorch: `export.OnnxModel` predicts without it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mspcaps.data.pictures import find_pictures, read_picture
from mspcaps.errors import MspcapsError

if TYPE_CHECKING:
    from torch import nn

Paths = Iterable[str | Path] | str | Path


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one picture with their scores, or an error message."""

    path: Path
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def predict(model: "nn.Module | str | Path", paths: Paths, top: int = 3, batch_size: int = 64) -> list[Prediction]:
    """One prediction per picture, in order; a folder means all pictures below it. Broken files do not stop it.

    `model` may also be anything that `load_model` accepts. Untrained models have numbers as class names.
    """
    return list(stream_predictions(model, paths, top, batch_size))


def stream_predictions(
    model: "nn.Module | str | Path", paths: Paths, top: int = 3, batch_size: int = 64
) -> Iterator[Prediction]:
    """As `predict`, but the first predictions come while later pictures are still being read."""
    import torch

    from mspcaps.evaluation.accuracy import all_scores
    from mspcaps.models import as_model, class_names, config_of

    module = as_model(model)
    config, classes = config_of(module), class_names(module)

    def predict_fn(images: np.ndarray) -> np.ndarray:
        return all_scores(module, torch.from_numpy(images), len(images)).numpy()

    yield from classify_pictures(predict_fn, paths, config["img_size"], config["in_chans"], classes, top, batch_size)


def classify_pictures(
    predict_fn: Callable[[np.ndarray], np.ndarray], paths: Paths, size: tuple[int, int], channels: int,
    classes: Sequence[str], top: int, batch_size: int,
) -> Iterator[Prediction]:  # fmt: skip
    """`predict_fn` maps images uint8 [n, c, h, w] to class scores [n, K]."""
    if top < 1:
        raise MspcapsError(f"top is {top}, but must be at least 1")
    if batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    if channels not in (1, 3):
        raise MspcapsError(f"the model takes images with {channels} channels, but pictures have 1 or 3")
    paths = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    if odd := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise MspcapsError(
            f"predict takes paths, not {type(odd[0]).__name__}: pass images in memory to model(x); "
            "mspcaps.data.read_picture converts open Pillow images"
        )
    pictures = find_pictures(paths)
    while batch := list(islice(pictures, batch_size)):
        images: list[np.ndarray] = []
        errors: list[str | None] = []
        for path, error in batch:
            if error is None:
                try:
                    images.append(read_picture(path, size, channels))
                except MspcapsError as refusal:
                    error = str(refusal)
            errors.append(error)
        scores = iter(predict_fn(np.stack(images)) if images else ())
        for (path, _), error in zip(batch, errors, strict=True):
            yield Prediction(path, error=error) if error else Prediction(path, best(next(scores), classes, top))


def best(scores: np.ndarray, classes: Sequence[str], top: int) -> tuple[tuple[str, float], ...]:
    """The `top` classes with the highest scores; equal scores keep the order of the classes."""
    order = np.argsort(-scores, kind="stable")[:top]
    return tuple((classes[k], float(scores[k])) for k in order)
