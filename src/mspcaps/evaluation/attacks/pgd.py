"""Attacks along the sign of the gradient: FGSM, the basic iterative method and projected gradient descent.

    x <- project(x + step sign(dJ/dx))     onto the box of eps around the image, and onto [0, 1]

FGSM (Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015) takes one step of eps from the image
itself. BIM (Kurakin et al., Adversarial Examples in the Physical World, 2017) takes several steps of eps / steps. PGD
(Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, 2018) starts at a random point of the box,
with steps of 2.5 eps / steps, and may restart from others. BIM and PGD keep the first image on the way that the model
gets wrong, so they fool it at least as often as attacks that keep only the last one.

The loss J of the labels is by default the cross-entropy of the scores, not the margin loss that capsules are trained
with: that is exactly flat where the model is confident (see objectives.py), and an attack without a gradient would make
a model look more robust than it is.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks.common import Adversarial, Draws, Scores, attacked, run_attempts
from mspcaps.evaluation.attacks.objectives import Objective, find_objective

LossFunction = Callable[[Tensor], Tensor]  # images [b, c, h, w] -> scalar to ascend


def fgsm(model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy") -> Tensor:
    """x [b, c, h, w] in [0, 1], labels y int64 [b] to lead away from -> [b, c, h, w] in [0, 1], at most eps away.

    The model runs in eval mode and is left unchanged; its parameters get no gradients.
    """
    with attacked(model, x, y, eps) as classes:
        loss = find_objective(objective, model, classes)
        return pgd_steps(lambda images: loss(model(images), y).sum(), x, x, eps, eps, 1)


def bim(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 10
) -> Tensor:
    """Images and labels as in `fgsm` -> images at most eps away."""
    with attacked(model, x, y, eps, steps) as classes:
        loss = find_objective(objective, model, classes)
        return walk(model, model, loss, x, x, y, eps, eps / steps, steps).images


def pgd(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 20,
    step_size: float | None = None, restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `bim`; each restart attacks the images that survived those before it. The random start of an image depends on
    its number in `numbers` [b], not on its batch."""
    with attacked(model, x, y, eps, steps, restarts) as classes:
        loss, size = find_objective(objective, model, classes), 2.5 * eps / steps if step_size is None else step_size

        def attempt(x: Tensor, y: Tensor, draws: Draws, restart: int) -> Adversarial:
            return walk(model, model, loss, x, draws.start(x, eps, restart), y, eps, size, steps)

        attempts = [partial(attempt, restart=restart) for restart in range(restarts)]
        return run_attempts(attempts, model, x, y, Draws.for_images(seed, x, numbers))


def walk(
    surrogate: Scores, model: Scores, loss: Objective, x: Tensor, start: Tensor, y: Tensor, eps: float,
    step_size: float, steps: int,
) -> Adversarial:  # fmt: skip
    """Steps that raise the loss of the surrogate's scores; whether an image fools is decided by the model's scores."""
    result = Adversarial(x, y)

    def ascend(images: Tensor) -> Tensor:
        scores = surrogate(images)
        if surrogate is model:
            result.update(images, scores)
        else:
            with torch.no_grad():
                result.update(images, model(images))
        return loss(scores, y).sum()

    last = pgd_steps(ascend, x, start, eps, step_size, steps)
    with torch.no_grad():
        result.update(last, model(last))
    return result


def pgd_steps(loss_fn: LossFunction, x: Tensor, start: Tensor, eps: float, step_size: float, steps: int) -> Tensor:
    """`steps` steps of step_size along the sign of the gradient, from `start`, within eps of x and within [0, 1].

    Images [b, c, h, w] -> images without a graph. The loss may be summed or averaged over the images: the sign is the
    same. Nothing here waits for the device or depends on values, so a training step that calls it can be captured as a
    CUDA graph. Parameters get no gradients; the caller decides whether the model is in eval mode.
    """
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    adversarial = start.detach()
    for _ in range(steps):
        slope = gradient(loss_fn, adversarial)
        adversarial = (adversarial + step_size * slope.sign()).clamp(low, high)
    return adversarial


def gradient(loss_fn: LossFunction, x: Tensor) -> Tensor:
    """The gradient of the loss with respect to the pixels; parameters get none."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = loss_fn(x)
        (slope,) = torch.autograd.grad(loss, x, allow_unused=True) if loss.requires_grad else (None,)
    if slope is None:
        raise MspcapsError(
            "the model's scores have no gradient in the pixels, because it detaches or quantises them or runs outside "
            "PyTorch: attack it with square"
        )
    return slope
