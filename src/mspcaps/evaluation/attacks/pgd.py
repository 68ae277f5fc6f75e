"""Iterated signs of gradients: the basic iterative method and projected gradient descent.

    x <- project(x + step sign(dJ/dx))     onto the box of eps around the image, and onto [0, 1]

BIM (Kurakin et al., Adversarial Examples in the Physical World, 2017) starts at the image itself, with steps of
eps / steps. PGD (Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, 2018) starts anywhere in
the box, with steps of 2.5 eps / steps, and tries again from elsewhere. Both keep the first image on the way that the
model gets wrong, so they find at least as many as an attack that looks at the last one alone.
"""

import torch
from torch import Tensor, nn

from mspcaps.evaluation.attacks.common import Attempt, Draws, Found, Scores, attacked, attempts
from mspcaps.evaluation.attacks.objectives import Objective, find_objective
from mspcaps.evaluation.attacks.steps import pgd_steps


def bim(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 10,
    step_size: float | None = None,
) -> Tensor:  # fmt: skip
    """Images and labels as in `fgsm` -> images at most eps away."""
    with attacked(model, x, y, eps) as classes:
        loss, size = find_objective(objective, classes), eps / steps if step_size is None else step_size
        return walk(model, model, loss, x, x, y, eps, size, steps).images


def pgd(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 20,
    step_size: float | None = None, restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `bim`; each restart is for the images that none before it fooled. Random starts are those of the `numbers` of
    the images [b], in whatever batch they come."""
    with attacked(model, x, y, eps) as classes:
        loss, size = find_objective(objective, classes), 2.5 * eps / steps if step_size is None else step_size

        def from_anywhere(restart: int) -> Attempt:
            def attempt(x: Tensor, y: Tensor, draws: Draws) -> Found:
                start = (x + eps * draws.within(x, restart)).clamp(0, 1)
                return walk(model, model, loss, x, start, y, eps, size, steps)

            return attempt

        tries = map(from_anywhere, range(restarts))
        return attempts(tries, model, x, y, Draws.for_images(seed, x, numbers))


def walk(
    ascended: Scores, judge: Scores, loss: Objective, x: Tensor, start: Tensor, y: Tensor, eps: float,
    step_size: float, steps: int,
) -> Found:  # fmt: skip
    """The steps on the loss of the `ascended` scores; whether an image fools is what `judge` says of every one."""
    found = Found(x, y)

    def ascend(images: Tensor) -> Tensor:
        scores = ascended(images)
        if ascended is judge:
            found.see(images, scores)
        else:
            with torch.no_grad():
                found.see(images, judge(images))
        return loss(scores, y).sum()

    last = pgd_steps(ascend, x, start, eps, step_size, steps)
    with torch.no_grad():
        found.see(last, judge(last))
    return found
