"""The fast gradient sign method (Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015).

    x' = clip(x + eps sign(dJ/dx), 0, 1)

One step of the size eps in every pixel, in the direction that raises the loss J of the given labels. J is the
cross-entropy of the scores, not the margin loss that capsules are trained with: that one is exactly flat wherever the
model is sure (a capsule longer than 0.9, the others shorter than 0.1), and an attack without a gradient would make a
model look robust that is not.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.errors import MspcapsError
from mspcaps.models.layers import check_floating, check_labels, in_eval_mode


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    """images [b, c, h, w] in [0, 1], labels int64 [b] to lead away from -> [b, c, h, w] in [0, 1], at most eps away.

    The model is asked in eval mode and left as it was; its parameters get no gradients.
    """
    if not (math.isfinite(eps) and 0 <= eps <= 1):
        raise MspcapsError(f"eps is {eps}, but must lie between 0 and 1, such as 8/255")
    check_floating(images)
    # BatchNorm must not mix the images of a batch, nor learn from them
    with in_eval_mode(model), torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        scores = model(x)
        check_labels(labels, scores.shape[1])
        (slope,) = torch.autograd.grad(F.cross_entropy(scores, labels, reduction="sum"), x)
    return (images + eps * slope.sign()).clamp(0, 1)
