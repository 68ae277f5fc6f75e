"""What is on these pictures? Asks any model that takes a batch of images; a broken file spoils no other."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from mspcaps.errors import MspcapsError
from mspcaps.pictures.files import pictures_below, read_picture

Ask = Callable[[np.ndarray], np.ndarray]  # images uint8 [n, c, h, w] -> class scores [n, K]


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one picture with their scores, or the sentence that says why there are none."""

    path: Path
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def stream_answers(
    ask: Ask, paths: Iterable[str | Path] | str | Path, size: tuple[int, int], channels: int, classes: Sequence[str],
    top: int, batch_size: int,
) -> Iterator[Prediction]:  # fmt: skip
    """One prediction per picture, in order; a folder stands for all pictures below it. The first answers are there
    while later pictures are still to be read."""
    if top < 1:
        raise MspcapsError(f"top is {top}, but must be at least 1")
    if batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    if channels not in (1, 3):
        raise MspcapsError(f"the model takes images with {channels} channels, but pictures have 1 or 3")
    files = picture_files([paths] if isinstance(paths, str | Path) else paths)
    while batch := list(islice(files, batch_size)):
        yield from answer_batch(ask, batch, size, channels, classes, top)


def answer_batch(
    ask: Ask, batch: list[Prediction], size: tuple[int, int], channels: int, classes: Sequence[str], top: int
) -> list[Prediction]:
    """Read the pictures that can be read, ask the model once, keep the order."""
    images: list[np.ndarray] = []
    answers: list[Prediction] = []
    for item in batch:
        if item.error is None:
            try:
                images.append(read_picture(item.path, size, channels))
            except MspcapsError as error:
                item = Prediction(item.path, error=str(error))
        answers.append(item)
    if not images:
        return answers
    rows = iter(ask(np.stack(images)))
    for i, item in enumerate(answers):
        if item.error is None:
            scores = next(rows)
            best = np.argsort(-scores, kind="stable")[:top]
            answers[i] = Prediction(item.path, tuple((classes[k], float(scores[k])) for k in best))
    return answers


def picture_files(paths: Iterable[str | Path]) -> Iterator[Prediction]:
    """Files as they are named, folders as the sorted pictures below them; not yet read."""
    for path in map(Path, paths):
        path = path.expanduser()
        if not os.path.isdir(path):  # unlike the method it raises nothing where a folder may not be looked into
            yield Prediction(path)
            continue
        closed: list[OSError] = []
        found = sorted(map(Path, pictures_below(path, onerror=closed.append)))
        for error in closed:
            yield Prediction(Path(error.filename), error=f"cannot read {error.filename}: {error.strerror}")
        if not found and not closed:
            yield Prediction(path, error=f"{path} holds no PNG, JPEG, BMP, WebP or GIF picture")
        yield from map(Prediction, found)
