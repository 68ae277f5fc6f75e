"""`CapsuleClassifier`: any model of the library as a scikit-learn estimator, for pipelines, searches and scoring.

from mspcaps.sklearn import CapsuleClassifier
CapsuleClassifier(epochs=10).fit(images, labels).score(more_images, more_labels)
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mspcaps.data.formats import to_nchw
from mspcaps.data.imageset import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import all_scores
from mspcaps.models import Model
from mspcaps.training import Recipe, train
from mspcaps.training.images import fitting_batch

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("mspcaps.sklearn needs scikit-learn: pip install 'mspcaps[sklearn]'") from error

MAX_MEASURED = 64  # training images that `train` measures accuracy on, since it needs test images


class CapsuleClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier, trained by `mspcaps.train`.

    X is [n, h, w], [n, h, w, c], [n, c, h, w], or flat [n, features]: square images, grey or RGB, unless `image_shape`
    says otherwise. Integers run from 0 to 255, floats and booleans from 0 to 1, unless `value_range` says otherwise.

    Args:
        model: Name of a registered model.
        epochs: Passes over the training images.
        lr: Peak learning rate.
        batch_size: Images per step; default: chosen by the number of images.
        img_size: Side length that images are resized to; default: their own, but at least 32.
        init: Initial weights, such as mspcaps_t.cifar10; empty: train from scratch.
        balance: Draw every class equally often.
        recipe: Further fields of the recipe, such as {"weight_decay": 0.01}.
        image_shape: Shape of the images in a flat X: (h, w) or (h, w, c).
        value_range: The values of black and white in X, such as (0, 16) for the digits of scikit-learn.
        device: cpu or cuda; default: the GPU if there is one.
        random_state: Seeds everything random; None draws from NumPy's global state, as everywhere in scikit-learn.
        verbose: Show progress.

    Attributes:
        classes_: The labels, sorted.
        model_: The trained model, a `mspcaps.models.Model`.
        loss_curve_: Mean loss of every epoch.
    """

    model_: Model

    def __init__(
        self,
        model: str = "mspcaps_t",
        *,
        epochs: int = 20,
        lr: float = 1e-3,
        batch_size: int | None = None,
        img_size: int | None = None,
        init: str = "",
        balance: bool = False,
        recipe: Mapping[str, Any] | None = None,
        image_shape: tuple[int, ...] | None = None,
        value_range: tuple[float, float] | None = None,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.img_size = img_size
        self.init = init
        self.balance = balance
        self.recipe = recipe
        self.image_shape = image_shape
        self.value_range = value_range
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> "CapsuleClassifier":
        """Train on images and labels of any kind."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype="numeric")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"training needs at least two classes, but y has one class, {self.classes_[0]!r}")
        with as_value_error():
            images = self._to_images(X)
            batch = fitting_batch(len(images)) if self.batch_size is None else min(self.batch_size, len(images))
            seed = self.random_state
            seed = int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31))
            fields: dict[str, Any] = {
                "model": self.model, "epochs": self.epochs, "lr": self.lr, "batch_size": batch,
                "img_size": self.img_size, "init": self.init, "balance": self.balance, "seed": seed,
            }  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder, "images.npz")
                measured = np.linspace(0, len(images) - 1, min(len(images), MAX_MEASURED)).astype(int)
                np.savez(
                    data, x_train=images, y_train=labels, x_test=images[measured], y_test=labels[measured],
                    classes=self.classes_.astype(str),
                )  # fmt: skip
                recipe = Recipe(**fields, data=str(data)).replace(**self.recipe or {})
                result = train(recipe, device=self.device, out=folder, results=folder, progress=self.verbose)
        self.model_, self.loss_curve_ = result.model, [row.loss for row in result.history]
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """[n, K]: the scores of the model, capsule lengths or logits. With two classes [n], as in scikit-learn: the log
        odds of the second."""
        scores = self._scores(X)
        if len(self.classes_) > 2:
            return scores
        logits = np.log(np.maximum(scores, 1e-30)) if self.model_.scores == "lengths" else scores
        return logits[:, 1] - logits[:, 0]

    def predict_proba(self, X: Any) -> np.ndarray:
        """[n, K], rows add up to one: lengths divided by their sum, or the softmax of the logits."""
        scores = self._scores(X)
        if self.model_.scores == "lengths":
            total = scores.sum(1, keepdims=True)
            return np.where(total > 0, scores / np.maximum(total, 1e-30), 1 / scores.shape[1])
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """[n]: labels."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(1)]

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if getattr(X, "ndim", 2) > 2:  # the layout may differ from that in `fit`
            X = check_array(X, allow_nd=True, dtype="numeric")
        else:
            X = validate_data(self, X, allow_nd=True, dtype="numeric", reset=False)
        with as_value_error():
            images = torch.from_numpy(self._to_images(X))
            if images.shape[1] != self.model_.in_chans:
                raise MspcapsError(
                    f"X has {images.shape[1]} channels, but the training images had {self.model_.in_chans}"
                )
            labels = torch.zeros(len(images), dtype=torch.int64)
            sized = ImageSet(images, labels, ("any",), "X").resized(self.model_.img_size)
            return all_scores(self.model_, sized.images, 500).double().numpy()

    def _to_images(self, X: np.ndarray) -> np.ndarray:
        """-> uint8 [n, c, h, w]"""
        if X.ndim == 2:
            X = X.reshape(len(X), *flat_shape(X.shape[1], self.image_shape))
        if X.dtype == np.uint8 and self.value_range is None:
            return to_nchw(X, "X")
        low, high = self.value_range or ((0.0, 1.0) if X.dtype.kind in "bf" else (0.0, 255.0))
        if not (low < high and X.min() >= low and X.max() <= high):
            raise MspcapsError(
                f"X has {X.dtype} from {X.min():g} to {X.max():g}, but must be in [{low:g}, {high:g}]: set value_range "
                "to the values of black and white"
            )
        return to_nchw(np.rint((X - low) * (255 / (high - low))).astype(np.uint8), "X")


def flat_shape(features: int, image_shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of an image of so many numbers: `image_shape`, or else a square, grey or RGB."""
    if image_shape is not None:
        if len(image_shape) not in (2, 3) or np.prod(image_shape) != features:
            raise MspcapsError(f"image_shape is {image_shape}, but X has {features} features")
        return tuple(image_shape)
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if channels * side**2 == features:
            return (side, side) if channels == 1 else (side, side, 3)
    raise MspcapsError(
        f"X has {features} features, which make no square: give X as [n, h, w] or [n, h, w, c], or set image_shape"
    )


@contextlib.contextmanager
def as_value_error() -> Iterator[None]:
    """scikit-learn expects a ValueError for bad input."""
    try:
        yield
    except MspcapsError as error:
        raise ValueError(str(error)) from error
