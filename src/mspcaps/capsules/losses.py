"""Losses on class scores."""

from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.squash import at_least_fp32


def margin_loss(
    scores: Tensor, labels: Tensor, m_plus: float = 0.9, m_minus: float = 0.1, absent: float = 0.5
) -> Tensor:
    """T max(0, m+ - |v|)^2 + absent (1 - T) max(0, |v| - m-)^2, summed over classes, mean over the batch.

    scores [b, j] are capsule lengths, labels [b] class numbers; returns a scalar.
    """
    scores = at_least_fp32(scores)
    present = F.one_hot(labels, scores.shape[1]).to(scores.dtype)  # [b, j]
    pull = present * F.relu(m_plus - scores).square()
    push = absent * (1 - present) * F.relu(scores - m_minus).square()
    return (pull + push).sum(1).mean()
