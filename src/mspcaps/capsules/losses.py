"""Losses on class scores."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError


def margin_loss(
    scores: Tensor, labels: Tensor, m_plus: float = 0.9, m_minus: float = 0.1, absent: float = 0.5
) -> Tensor:
    """T max(0, m+ - |v|)^2 + absent (1 - T) max(0, |v| - m-)^2, summed over classes, mean over the batch.

    scores [b, j] are capsule lengths, labels [b] class numbers; returns a scalar.
    """
    scores = at_least_fp32(scores)
    check_labels(labels, scores.shape[1])
    present = F.one_hot(labels, scores.shape[1]).to(scores.dtype)  # [b, j]
    pull = present * F.relu(m_plus - scores).square()
    push = absent * (1 - present) * F.relu(scores - m_minus).square()
    return (pull + push).sum(1).mean()


def check_labels(labels: Tensor, classes: int) -> None:
    """Their range on the CPU only: a GPU would have to be waited for."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise MspcapsError(
            f"labels must be class numbers, one per image, not {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type != "cpu" or torch.compiler.is_compiling() or labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise MspcapsError(f"labels run from {low} to {high}, but there are {classes} classes, numbered from 0")
