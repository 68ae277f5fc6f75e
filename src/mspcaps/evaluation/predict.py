"""Classify pictures, in files, in folders or in memory, with any model that takes a batch of images.

torch is imported only for a model in PyTorch: `export.OnnxModel` predicts without it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mspcaps.data.in_memory import fit_image, is_image, is_tensor, split_images
from mspcaps.data.pictures import describe_broken, find_pictures
from mspcaps.errors import MspcapsError, warn

if TYPE_CHECKING:
    from torch import nn

MAX_SHOWN = 50  # rows in a notebook
Pictures = Any  # a path, a Pillow image, an array, a tensor, or several of them in any iterable


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one picture with their scores, or an error message."""

    path: Path | None  # None for an image in memory
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


class Predictions(list[Prediction]):
    """What `predict` returns: a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from mspcaps.pages.notebook import small_table  # needs jinja2, which an exported file runs without

        rows = [
            (
                str(number) if prediction.path is None else prediction.path.name,
                prediction.error or ", ".join(f"{name} {score:.3f}" for name, score in prediction.top),
            )
            for number, prediction in enumerate(self[:MAX_SHOWN])
        ]
        more = f"and {len(self) - MAX_SHOWN:,} more" if len(self) > MAX_SHOWN else ""
        return small_table(("picture", "most likely classes"), rows, more)


def predict(
    model: "nn.Module | str | Path",
    pictures: Pictures,
    top: int = 3,
    batch_size: int = 64,
    skip_broken: bool = False,
) -> Predictions:
    """One prediction per picture, in order.

    `pictures` are paths, where a folder means all pictures below it, Pillow images, arrays or tensors of uint8 or of
    floats in [0, 1], single or in batches, or a list of any of them. Images in memory are resized as files are.
    `model` may also be anything that `load_model` accepts. Untrained models have numbers as class names.
    A broken file does not stop it: its prediction has an `error`. With `skip_broken`, broken files are left out, with a
    warning that names the first of them.
    """
    predictions = stream_predictions(model, pictures, top, batch_size)
    return Predictions(leave_out_broken(predictions, warn) if skip_broken else predictions)


def stream_predictions(
    model: "nn.Module | str | Path", pictures: Pictures, top: int = 3, batch_size: int = 64
) -> Iterator[Prediction]:
    """As `predict`, but the first predictions come while later pictures are still being read."""
    import torch

    from mspcaps.evaluation.accuracy import all_scores, limit_batch
    from mspcaps.models import as_model, class_names, config_of, unwrapped

    module = as_model(model)
    config, classes = config_of(module), class_names(module)

    def predict_fn(images: np.ndarray) -> np.ndarray:
        return all_scores(module, torch.from_numpy(images), len(images)).numpy()

    yield from classify_pictures(
        predict_fn, pictures, config["img_size"], config["in_chans"], classes, top, batch_size,
        lambda: limit_batch(unwrapped(module), batch_size),
    )  # fmt: skip


def classify_pictures(
    predict_fn: Callable[[np.ndarray], np.ndarray], pictures: Pictures, size: tuple[int, int], channels: int,
    classes: Sequence[str], top: int, batch_size: int, limit: Callable[[], int] | None = None,
) -> Iterator[Prediction]:  # fmt: skip
    """`predict_fn` maps images [n, c, h, w], uint8 or float32 in [0, 1], to class scores [n, K]; `limit` gives the
    largest batch that fits into memory, and is not asked about a single picture, since the answer takes a second."""
    if top < 1:
        raise MspcapsError(f"top is {top}, but must be at least 1")
    if batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    single = isinstance(pictures, str | os.PathLike) or is_image(pictures) or not isinstance(pictures, Iterable)
    sources = find_sources([pictures] if single else pictures, channels)
    first = list(islice(sources, 2))
    if limit and len(first) > 1:
        batch_size = limit()
    sources = chain(first, sources)
    while batch := list(islice(sources, batch_size)):
        images: list[np.ndarray] = []
        errors: list[str | None] = []
        for _, image, error in batch:
            if error is None:
                try:
                    images.append(fit_image(image, size, channels))
                except MspcapsError as refusal:
                    if isinstance(image, np.ndarray):  # not broken, but unsuitable for this model
                        raise
                    error = str(refusal)
            errors.append(error)
        scores = iter(predict_fn(stack(images)) if images else ())
        for (path, _, _), error in zip(batch, errors, strict=True):
            yield Prediction(path, error=error) if error else Prediction(path, best(next(scores), classes, top))


Source = tuple[Path | None, Path | Image.Image | np.ndarray, str | None]  # path, what to read, error


def find_sources(pictures: Iterable[object], channels: int) -> Iterator[Source]:
    """Every single picture, in order."""
    for item in pictures:
        if channels not in (1, 3) and not (isinstance(item, np.ndarray) or is_tensor(item)):
            raise MspcapsError(f"the model takes images with {channels} channels, but pictures have 1 or 3")
        if isinstance(item, str | os.PathLike):
            for path, error in find_pictures([Path(item)]):
                yield path, path, error
        elif is_image(item):
            for image in split_images(item, channels):
                yield None, image, None
        else:
            raise MspcapsError(
                f"predict takes paths, Pillow images, arrays and tensors, or a list of them, not {type(item).__name__}"
            )


def stack(images: Sequence[np.ndarray]) -> np.ndarray:
    """A batch of bytes if all images are bytes, else of floats."""
    if any(image.dtype != np.uint8 for image in images):
        images = [as_input(image) for image in images]
    return np.stack(images)


def as_input(images: np.ndarray) -> np.ndarray:
    """uint8 -> float32 in [0, 1]; floats stay as they are."""
    return images.astype(np.float32) / np.float32(255) if images.dtype == np.uint8 else images


def leave_out_broken(predictions: Iterable[Prediction], tell: Callable[[str], None]) -> Iterator[Prediction]:
    """The predictions without an error; at the end `tell` receives a sentence about the others. If all pictures are
    broken, that is an error."""
    errors, read = [], 0
    for prediction in predictions:
        if prediction.error is None:
            read += 1
            yield prediction
        else:
            errors.append(prediction.error)
    if errors and not read:
        raise MspcapsError(describe_broken(errors, len(errors)))
    if errors:
        tell(describe_broken(errors, read + len(errors)))


def best(scores: np.ndarray, classes: Sequence[str], top: int) -> tuple[tuple[str, float], ...]:
    """The `top` classes with the highest scores; equal scores keep the order of the classes."""
    order = np.argsort(-scores, kind="stable")[:top]
    return tuple((classes[k], float(scores[k])) for k in order)
