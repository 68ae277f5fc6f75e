"""Measures of every class, and calibration, from confusion matrix, scores and labels."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BINS = 15  # of the calibration error


class ClassMetrics(NamedTuple):
    """float64 [K] each; NaN where there is nothing to measure."""

    precision: Tensor  # percent of the answers of a class that are right; NaN for a class that is never the answer
    recall: Tensor  # percent of the images of a class that are recognised; NaN for a class without images
    f1: Tensor  # their harmonic mean in percent; NaN for a class without images that is never the answer


def class_metrics(confusion: Tensor) -> ClassMetrics:
    """confusion int64 [K, K]: rows are the true classes, columns the answers."""
    hits, answers, images = confusion.diagonal().double(), confusion.sum(0).double(), confusion.sum(1).double()
    return ClassMetrics(100 * hits / answers, 100 * hits / images, 200 * hits / (answers + images))


def one_vs_rest_auc(presence: Tensor, labels: Tensor) -> Tensor:
    """[n, K] and int64 [n] -> float64 [K]: the area under the ROC curve of each class against all others, in [0, 1].

    It is the chance that an image of the class has a higher value than an image of another class; ties count half. NaN
    for a class that has no images, or all of them.
    """
    areas = torch.full((presence.shape[1],), torch.nan, dtype=torch.float64)
    for k in labels.unique().tolist():
        column = presence[:, k].numpy()
        every, own = np.sort(column), column[(labels == k).numpy()]  # NumPy sorts ten times as fast
        m, others = len(own), len(every) - len(own)
        if others:
            below, upto = (int(np.searchsorted(every, own, side).sum()) for side in ("left", "right"))
            areas[k] = (below + upto - m * m) / (2 * m * others)  # comparisons within the class add up to m * m
    return areas


class Calibration(NamedTuple):
    """Bins of equal width over the confidence, each [bins]; confidence and accuracy are NaN for an empty bin."""

    images: Tensor  # int64: number in the bin
    confidence: Tensor  # mean, in [0, 1]
    accuracy: Tensor  # in [0, 1]

    @property
    def error(self) -> float:
        """Mean over the images of |accuracy - mean confidence| in the bin of the image."""
        gaps = self.images * (self.accuracy - self.confidence).abs()
        return (gaps.nansum() / self.images.sum()).item()


def calibrate(confidences: Tensor, right: Tensor, bins: int = BINS) -> Calibration:
    """Confidences in [0, 1] and whether the answers are right, [n] each."""
    index = (confidences.double() * bins).ceil().long().sub(1).clamp(0, bins - 1)  # bins are open on the left, as usual
    count = torch.bincount(index, minlength=bins)
    sums = (torch.zeros(bins, dtype=torch.float64).index_add_(0, index, part.double()) for part in (confidences, right))
    return Calibration(count, *(total / count for total in sums))
