"""What is on these pictures? Answers of a model for single files and whole folders."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mspcaps.evaluation.accuracy import all_scores
from mspcaps.models.pretrained import class_names
from mspcaps.pictures import Prediction, stream_answers


def predict(
    model: nn.Module, paths: Iterable[str | Path] | str | Path, top: int = 3, batch_size: int = 64
) -> list[Prediction]:
    """One prediction per picture, in order; a folder stands for all pictures below it. A broken file spoils no other.

    `model` comes from `load_model`, or from `create_model`: then classes are numbers.
    """
    return list(stream_predictions(model, paths, top, batch_size))


def stream_predictions(
    model: nn.Module, paths: Iterable[str | Path] | str | Path, top: int = 3, batch_size: int = 64
) -> Iterator[Prediction]:
    """As `predict`, but the first answers are there while later pictures are still to be read."""
    config = model.config
    assert isinstance(config, dict)

    def ask(images: np.ndarray) -> np.ndarray:
        return all_scores(model, torch.from_numpy(images), len(images)).numpy()

    yield from stream_answers(
        ask, paths, tuple(config["img_size"]), config["in_chans"], class_names(model), top, batch_size
    )
