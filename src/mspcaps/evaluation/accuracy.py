"""Accuracy, loss, calibration and confusion of a model on a set of images, in the precision of its weights."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mspcaps.data import FolderImages, ImageSet
from mspcaps.data.folder import iterate_batches
from mspcaps.data.imageset import to_float
from mspcaps.data.in_memory import check_pixels, to_nhwc
from mspcaps.errors import MspcapsError, first_line
from mspcaps.evaluation.health import BlockHealth, measure_health
from mspcaps.evaluation.load import load_for
from mspcaps.evaluation.metrics import Calibration, ClassMetrics, calibrate, class_metrics, one_vs_rest_auc
from mspcaps.files import ProgressFn, no_progress
from mspcaps.models import Model, as_model, class_names, unwrapped
from mspcaps.models.layers import check_labels, in_eval_mode
from mspcaps.models.registry import build_on_meta
from mspcaps.models.summary import memory_per_image
from mspcaps.pages.notebook import small_table

ScoreKind = Literal["lengths", "logits"]
Pixels = Tensor | np.ndarray
Data = (
    ImageSet | FolderImages | DataLoader[Any] | tuple[Pixels, Tensor | np.ndarray | Sequence[int]] | str | Path
)  # what `evaluate` measures on
MAX_BYTES = {"cuda": 16 << 30, "cpu": 4 << 30}  # of activations in one batch, as training would keep them
MAX_SHOWN = 30  # classes in a notebook
MIRRORED = "scores are averaged over each image and its mirror image"


@dataclass(frozen=True)
class Evaluation:
    """K classes, n images; every tensor is on the CPU."""

    accuracy: float  # percent
    n: int
    loss: float  # the model's training loss, mean over the images; NaN if the model defines none
    confidence: float  # percent, mean over the images; see `confidence`
    ece: float  # expected calibration error in percent, 15 bins of equal width; see `confidence`
    confusion: Tensor  # int64 [K, K]: row is the true class, column the answer
    scores: Tensor  # float32 [n, K], as the model gives them
    labels: Tensor  # int64 [n]
    classes: tuple[str, ...]
    health: tuple[BlockHealth, ...] = ()  # of every routing block, on some of the images; see evaluation/health.py
    kind: ScoreKind = "lengths"  # of the scores
    flip: bool = False  # whether scores are averaged over an image and its mirror image

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.accuracy:.2f} % of {self.n:,} images right, loss {self.loss:.4f}, "
            f"mean confidence {self.confidence:.2f} %, ece {self.ece:.2f} %{f'; {MIRRORED}' if self.flip else ''})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the accuracy of each class."""
        counts = self.confusion.sum(1).tolist()
        rows = [
            (name, f"{count:,}", f"{percent:.2f} %" if count else "-")
            for name, count, percent in zip(self.classes, counts, self.per_class, strict=True)
        ]
        more = f"and {len(rows) - MAX_SHOWN:,} more classes; " if len(rows) > MAX_SHOWN else ""
        note = (
            f"{more}loss {self.loss:.4f}, mean confidence {self.confidence:.2f} %, calibration error {self.ece:.2f} %"
            f"{f'; {MIRRORED}' if self.flip else ''}"
        )
        title = f"{self.accuracy:.2f} % of {self.n:,} images right"
        return small_table(("class", "images", "accuracy"), rows[:MAX_SHOWN], note, title, right=(1, 2))

    @property
    def predictions(self) -> Tensor:
        """int64 [n]"""
        return self.scores.argmax(1)

    @property
    def per_class(self) -> list[float]:
        """Accuracy of each class in percent; NaN for a class without images."""
        return (100 * self.confusion.diagonal() / self.confusion.sum(1)).tolist()

    @property
    def mean_per_class(self) -> float:
        """Mean of the per-class accuracies in percent; classes without images are left out."""
        return torch.tensor(self.per_class).nanmean().item()

    @cached_property
    def presence(self) -> Tensor:
        """float32 [n, K] in [0, 1]: the length of each class capsule, or the softmax of the logits."""
        return self.scores if self.kind == "lengths" else self.scores.softmax(1)

    @cached_property
    def class_metrics(self) -> ClassMetrics:
        """Precision, recall and F1 of each class in percent; see evaluation/metrics.py."""
        return class_metrics(self.confusion)

    @cached_property
    def auc(self) -> Tensor:
        """float64 [K]: the area under the ROC curve of each class against all others, in [0, 1]."""
        # in double precision, which rounds fewer of a confident model's probabilities to 1
        presence = self.scores if self.kind == "lengths" else self.scores.double().softmax(1)
        return one_vs_rest_auc(presence, self.labels)

    @cached_property
    def calibration(self) -> Calibration:
        """Confidence and accuracy in bins of equal width."""
        return calibrate(self.presence.amax(1), self.predictions == self.labels)


def evaluate(
    model: nn.Module | str | Path,
    data: Data,
    batch_size: int = 500,
    device: torch.device | str | None = None,
    progress: ProgressFn = no_progress,
    skip_broken: bool = False,
    flip: bool = False,
) -> Evaluation:
    """Measure a model on all images of `data`, in batches of `batch_size` or fewer if they would take too much memory.

    `model` may also be anything that `load_model` accepts. If `data` is the name of a data set, its test images are
    used, in the model's image size; a pair holds images and labels [n], and a DataLoader yields such pairs. Images are
    tensors or arrays of uint8, or of floats in [0, 1]: normalisation is part of the model. With `skip_broken`, pictures
    of a folder that cannot be read are left out, with a warning that names the first of them. With `flip`, the scores
    of every image are averaged with those of its mirror image, and the result says so. If `device` is given, the model
    is moved there; it returns to the mode, train or eval, that it was in.
    """
    if batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    model, images, labels, classes = prepare(model, data, device, skip_broken)
    inner = unwrapped(model)
    classes, batch_size = classes or class_names(inner), limit_batch(inner, batch_size)
    scores = all_scores(model, images, batch_size, progress, flip)
    check_labels(labels, scores.shape[1])
    with full_precision(placement(model)[0]):
        health = measure_health(inner, images, labels, batch_size) if isinstance(inner, Model) else ()
    return measure(inner, scores, labels, classes, health, flip)


def measure(
    model: nn.Module, scores: Tensor, labels: Tensor, classes: tuple[str, ...], health: tuple[BlockHealth, ...] = (),
    flip: bool = False,
) -> Evaluation:  # fmt: skip
    """Evaluate scores [n, K], of `model` or of an ensemble of its kind, against labels [n]."""
    predictions, k = scores.argmax(1), scores.shape[1]
    kind: ScoreKind = getattr(model, "scores", "logits")
    confidences = confidence(scores, kind)
    return Evaluation(
        accuracy=100 * (predictions == labels).double().mean().item(),
        n=len(labels),
        loss=model.criterion(scores, labels).item() if hasattr(model, "criterion") else math.nan,  # type: ignore[operator]
        confidence=100 * confidences.mean().item(),
        ece=100 * calibrate(confidences, predictions == labels).error,
        confusion=torch.bincount(labels * k + predictions, minlength=k * k).view(k, k),
        scores=scores,
        labels=labels,
        classes=classes,
        health=health,
        kind=kind,
        flip=flip,
    )


def prepare(
    model: nn.Module | str | Path, data: Data, device: torch.device | str | None, skip_broken: bool = False
) -> tuple[nn.Module, Tensor, Tensor, tuple[str, ...]]:
    """The arguments of `evaluate` -> the model on its device, images [n, c, h, w], labels [n] on the CPU, and the class
    names, empty if the data have none."""
    model = as_model(model)
    if isinstance(data, str | Path):
        data = load_for(model, data, skip_broken=skip_broken)
    elif isinstance(data, FolderImages):
        data = (data.readable() if skip_broken else data).resident()
    inner = unwrapped(model)
    if isinstance(data, ImageSet):
        check_fit(inner, data)
        images, labels, classes = data.images, data.labels.cpu(), data.classes
    else:
        images, labels = gather(data) if isinstance(data, DataLoader) else as_pair(data, inner)
        classes = ()
    if device is not None:
        try:
            model = model.to(device)
        except (RuntimeError, AssertionError) as error:  # PyTorch raises either for an unknown or absent device
            raise MspcapsError(f"cannot use the device {str(device)!r}: {first_line(error)}") from error
    return model, images, labels, classes


def limit_batch(model: nn.Module, batch_size: int) -> int:
    """`batch_size`, or fewer images if the activations of a registered model would take more than MAX_BYTES."""
    if not isinstance(model, Model):
        return batch_size
    try:
        per_image = memory_per_image(build_on_meta(**model.config))
    except (MspcapsError, RuntimeError, TypeError, ValueError):  # a user's own model: not registered, or not for meta
        return batch_size
    limit = MAX_BYTES.get(placement(model)[0].type, MAX_BYTES["cpu"])
    return max(1, min(batch_size, limit // max(1, per_image)))


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and type of the parameters; an exported file has none, and takes fp32 on the CPU."""
    first = next(model.parameters(), None)
    return (torch.device("cpu"), torch.float32) if first is None else (first.device, first.dtype)


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and no TF32, which is cuDNN's default on recent GPUs and keeps only 10 of 23 bits."""
    with torch.autocast(device.type, enabled=False), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@torch.no_grad()
def all_scores(
    model: nn.Module, images: Tensor, batch_size: int, progress: ProgressFn = no_progress, flip: bool = False
) -> Tensor:
    """images [n, c, h, w], uint8 or floats in [0, 1] -> scores float32 [n, K] on the CPU; with `flip`, averaged over
    each image and its mirror image."""
    device, dtype = placement(model)
    scores = []
    with in_eval_mode(model), full_precision(device):
        for start in range(0, len(images), batch_size):
            batch = to_float(images[start : start + batch_size].to(device)).to(dtype)
            values = model(batch).float()
            scores.append(((values + model(batch.flip(3)).float()) / 2 if flip else values).cpu())
            if not torch.isfinite(scores[-1]).all():  # their maximum would be meaningless
                raise MspcapsError("the model's scores are not finite: its weights are damaged")
            progress("evaluating", min(start + batch_size, len(images)), len(images))
    return torch.cat(scores)


def confidence(scores: Tensor, kind: ScoreKind) -> Tensor:
    """The model's confidence in its answers, in [0, 1]: scores [n, K] -> [n].

    It is the largest capsule length, or the largest softmax of the logits.
    """
    return (scores if kind == "lengths" else scores.softmax(1)).amax(1)


def as_pair(data: object, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Images and labels, each a tensor or an array; labels may be a list -> tensors [n, c, h, w] and [n]."""
    match data:
        case (Tensor() | np.ndarray() as images, Tensor() | np.ndarray() | list() | tuple() as labels):
            if isinstance(images, np.ndarray):
                channels = getattr(model, "config", {}).get("in_chans", 3)
                pixels = np.moveaxis(to_nhwc(check_pixels(images), channels, False), -1, 1)
                images = torch.from_numpy(np.ascontiguousarray(pixels))
            labels = torch.as_tensor(labels).cpu()
            if images.ndim == 4 and labels.shape == images.shape[:1] and len(labels):
                return images, labels.long() if not labels.is_floating_point() else labels
            raise MspcapsError(
                f"images must have the shape [n, c, h, w] and labels [n], not {tuple(images.shape)} and "
                f"{tuple(labels.shape)}"
            )
    raise MspcapsError(
        f"evaluate takes a data set from load_dataset, its name, a DataLoader, or a pair of images [n, c, h, w] and "
        f"labels [n], not {type(data).__name__}"
    )


def gather(loader: "DataLoader[Any]") -> tuple[Tensor, Tensor]:
    """All images and labels of a loader, in its order."""
    images, labels = [], []
    for batch in iterate_batches(loader):
        match batch:
            case (Tensor() as x, Tensor() as y) if x.ndim == 4 and y.shape == x.shape[:1]:
                to_float(x[:0] if x.dtype == torch.uint8 else x)  # refuses unsuitable numbers before reading the rest
                images.append(x.cpu())
                labels.append(y.cpu())
            case _:
                raise MspcapsError(
                    "a DataLoader for evaluate must yield pairs of images [n, c, h, w] and labels [n], but this one "
                    f"yields {type(batch).__name__}"
                )
    if not images:
        raise MspcapsError("the DataLoader yields no images")
    return torch.cat(images), torch.cat(labels)


def check_fit(model: nn.Module, data: ImageSet) -> None:
    """Refuse images that the model does not take, instead of failing with a shape error from deep inside."""
    config = getattr(model, "config", None)
    if not isinstance(config, dict):
        return  # a user's module, which may take anything
    name, size = config["name"], config["img_size"]
    if (data.channels, *data.size) != (config["in_chans"], *size):
        raise MspcapsError(
            f"{name} takes images of {config['in_chans']} x {size[0]} x {size[1]} (channels, height, width), but "
            f"{data.name} has {data.channels} x {data.size[0]} x {data.size[1]}: evaluate(model, NAME) resizes them"
        )
    if len(data.classes) != config["num_classes"]:
        raise MspcapsError(f"{name} has {config['num_classes']} classes, but {data.name} has {len(data.classes)}")
    classes = class_names(model) if getattr(model, "metadata", {}).get("classes") else data.classes
    if classes != data.classes:
        k = next(i for i, pair in enumerate(zip(classes, data.classes, strict=True)) if len(set(pair)) > 1)
        raise MspcapsError(
            f"class {k} is {classes[k]!r} for the model and {data.classes[k]!r} in {data.name}: load the data with "
            "evaluation.load_for, which numbers the classes as the model does"
        )
