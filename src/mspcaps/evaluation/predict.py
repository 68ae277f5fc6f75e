"""What is on these pictures? Answers for single files and whole folders."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mspcaps.data.pictures import SUFFIXES, read_picture
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import all_scores


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one picture with their scores, or the sentence that says why there are none."""

    path: Path
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


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
    if top < 1:
        raise MspcapsError(f"top is {top}, but must be at least 1")
    config = model.config
    assert isinstance(config, dict)
    if config["in_chans"] not in (1, 3):
        raise MspcapsError(f"the model takes images of {config['in_chans']} channels, but pictures have 1 or 3")
    classes = getattr(model, "about", {}).get("classes") or [str(label) for label in range(config["num_classes"])]
    files = picture_files([paths] if isinstance(paths, str | Path) else paths)
    while batch := list(islice(files, batch_size)):
        yield from predict_batch(model, batch, config, classes, top)


def predict_batch(
    model: nn.Module, batch: list[Prediction], config: dict, classes: list[str], top: int
) -> list[Prediction]:
    """Read the pictures that can be read, ask the model once, keep the order."""
    images: list[np.ndarray] = []
    answers: list[Prediction] = []
    for item in batch:
        if item.error is None:
            try:
                images.append(read_picture(item.path, tuple(config["img_size"]), config["in_chans"]))
            except MspcapsError as error:
                item = Prediction(item.path, error=str(error))
        answers.append(item)
    if not images:
        return answers
    scores, best = all_scores(model, torch.from_numpy(np.stack(images)), len(images)).sort(1, descending=True)
    rows = zip(scores[:, :top].tolist(), best[:, :top].tolist(), strict=True)
    for i, item in enumerate(answers):
        if item.error is None:
            row = zip(*next(rows), strict=True)
            answers[i] = Prediction(item.path, tuple((classes[label], score) for score, label in row))
    return answers


def picture_files(paths: Iterable[str | Path]) -> Iterator[Prediction]:
    """Files as they are named, folders as the sorted pictures below them; not yet read."""
    for path in map(Path, paths):
        path = path.expanduser()
        if not path.is_dir():
            yield Prediction(path)
            continue
        found = sorted(
            Path(place) / file
            for place, _, files in os.walk(path)
            for file in files
            if Path(file).suffix.lower() in SUFFIXES and not file.startswith(".")
        )
        if not found:
            yield Prediction(path, error=f"{path} holds no PNG, JPEG, BMP, WebP or GIF picture")
        yield from map(Prediction, found)
