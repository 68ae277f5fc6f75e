"""The fast gradient sign method (Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015).

    x' = clip(x + eps sign(dJ/dx), 0, 1)

One step of size eps in every pixel, in the direction that raises the loss J of the labels. J is by default the
cross-entropy of the scores, not the margin loss that capsules are trained with: that is exactly flat where the model is
confident (see objectives.py), and an attack without a gradient would make a model look more robust than it is.
"""

from torch import Tensor, nn

from mspcaps.evaluation.attacks.common import attacked
from mspcaps.evaluation.attacks.objectives import find_objective
from mspcaps.evaluation.attacks.steps import pgd_steps


def fgsm(model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy") -> Tensor:
    """x [b, c, h, w] in [0, 1], labels y int64 [b] to lead away from -> [b, c, h, w] in [0, 1], at most eps away.

    The model runs in eval mode and is left unchanged; its parameters get no gradients.
    """
    with attacked(model, x, y, eps) as classes:
        loss = find_objective(objective, model, classes)
        return pgd_steps(lambda images: loss(model(images), y).sum(), x, x, eps, eps, 1)
