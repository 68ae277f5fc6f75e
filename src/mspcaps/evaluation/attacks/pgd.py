"""Iterated signs of gradients: the basic iterative method and projected gradient descent.

    x <- project(x + step sign(dJ/dx))     onto the box of eps around the image, and onto [0, 1]

BIM (Kurakin et al., Adversarial Examples in the Physical World, 2017) starts at the image itself, with steps of
eps / steps. PGD (Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, 2018) starts at a random
point of the box, with steps of 2.5 eps / steps, and may restart from others. Both keep the first image on the way that
the model gets wrong, so they fool it at least as often as attacks that keep only the last one.
"""

import torch
from torch import Tensor, nn

from mspcaps.evaluation.attacks.common import Adversarial, Attempt, Draws, Scores, attacked, check_counts, run_attempts
from mspcaps.evaluation.attacks.objectives import Objective, find_objective
from mspcaps.evaluation.attacks.steps import pgd_steps


def bim(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 10
) -> Tensor:
    """Images and labels as in `fgsm` -> images at most eps away."""
    check_counts(steps)
    with attacked(model, x, y, eps) as classes:
        loss = find_objective(objective, model, classes)
        return walk(model, model, loss, x, x, y, eps, eps / steps, steps).images


def pgd(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 20,
    step_size: float | None = None, restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `bim`; each restart attacks the images that survived those before it. The random start of an image depends on
    its number in `numbers` [b], not on its batch."""
    check_counts(steps, restarts)
    with attacked(model, x, y, eps) as classes:
        loss, size = find_objective(objective, model, classes), 2.5 * eps / steps if step_size is None else step_size

        def from_random_start(restart: int) -> Attempt:
            def attempt(x: Tensor, y: Tensor, draws: Draws) -> Adversarial:
                return walk(model, model, loss, x, draws.start(x, eps, restart), y, eps, size, steps)

            return attempt

        attempts = map(from_random_start, range(restarts))
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
