"""Losses on class scores. Targets are class numbers [b], or soft targets [b, j] such as those of mixup."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.squash import at_least_fp32


def margin_loss(scores: Tensor, y: Tensor, m_plus: float = 0.9, m_minus: float = 0.1, absent: float = 0.5) -> Tensor:
    """T max(0, m+ - |v|)^2 + absent (1 - T) max(0, |v| - m-)^2, summed over classes, mean over the batch.

    scores [b, j] are capsule lengths. T is one for the class of an image and zero for the others, or y itself if y is
    soft. Returns a scalar.
    """
    return margin_losses(scores, y, m_plus, m_minus, absent).mean()


def margin_losses(scores: Tensor, y: Tensor, m_plus: float = 0.9, m_minus: float = 0.1, absent: float = 0.5) -> Tensor:
    """The margin loss of each image: [b]."""
    scores = at_least_fp32(scores)
    present = soft_targets(y, scores)  # T [b, j]
    pull = present * F.relu(m_plus - scores).square()
    push = absent * (1 - present) * F.relu(scores - m_minus).square()
    return (pull + push).sum(1)


def soft_targets(y: Tensor, scores: Tensor) -> Tensor:
    """Class numbers [b], or targets that are soft already [b, j] -> [b, j] in the precision of the scores.

    Not F.one_hot: it reads the values, which torch.func.vmap does not allow, and gradients per image need vmap.
    """
    return y.to(scores.dtype) if y.is_floating_point() else torch.zeros_like(scores).scatter(1, y[:, None], 1.0)


def smooth_targets(y: Tensor, scores: Tensor, smoothing: float) -> Tensor:
    """Targets with a share `smoothing` spread evenly over all classes: [b] or [b, j] -> [b, j]; y itself at 0."""
    return soft_targets(y, scores) * (1 - smoothing) + smoothing / scores.shape[1] if smoothing else y


LENGTH_SCALE = 12.0  # lengths stay below 1: unscaled, no class could get a probability near 1


def length_cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with 12 times the lengths of the class capsules [b, j] as logits: a scalar."""
    return F.cross_entropy(LENGTH_SCALE * at_least_fp32(scores), y)
