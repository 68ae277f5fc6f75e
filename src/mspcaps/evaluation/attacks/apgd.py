"""Auto-PGD (Croce and Hein, Reliable Evaluation of Adversarial Robustness, ICML 2020): PGD that adapts its step size.

    z[t+1] = project(x[t] + step sign(dJ/dx))
    x[t+1] = project(x[t] + 0.75 (z[t+1] - x[t]) + 0.25 (x[t] - x[t-1]))

The step is 2 eps at first. At checkpoints (after 22, 41, 57, 70, 80, 87, 93 and 99 % of the steps) it is halved, and
the search returns to the best point so far, for each image whose loss rose in less than three quarters of the steps
since the last checkpoint, or whose best loss and step have not changed since then. AutoAttack runs it on the
cross-entropy and on the targeted DLR loss, once for each of the nine highest other classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn

from mspcaps.evaluation.attacks.common import Adversarial, Draws, attacked, run_attempts, spread
from mspcaps.evaluation.attacks.objectives import check_classes, find_objective, targeted_dlr
from mspcaps.evaluation.attacks.pgd import gradient

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores [b, K], labels [b], targets [b] -> [b]
TARGETED, TARGETS = "targeted_dlr", 9
MIN_RISES = 0.75  # share of the steps that must raise the loss


def apgd(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 100,
    restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `pgd`. The objective may also be "targeted_dlr", which is tried for the nine highest other classes."""
    with attacked(model, x, y, eps, steps, restarts) as classes:
        if objective == TARGETED:
            check_classes(TARGETED, classes)
            loss: Loss = targeted_dlr
            ranks = range(1, min(TARGETS, classes - 1) + 1)
        else:
            plain = find_objective(objective, model, classes)
            loss, ranks = (lambda scores, y, target: plain(scores, y)), range(1, 2)

        def attempt(x: Tensor, y: Tensor, draws: Draws, rank: int, restart: int) -> Adversarial:
            with torch.no_grad():
                target = other_class(model(x), y, rank)
            noise = draws.within(x, 100 * restart + rank)
            start = (x + eps * noise / noise.abs().amax((1, 2, 3), keepdim=True)).clamp(0, 1)
            return Search(model, loss, x, start, y, target, eps).run(steps)

        attempts = [partial(attempt, rank=rank, restart=restart) for restart in range(restarts) for rank in ranks]
        return run_attempts(attempts, model, x, y, Draws.for_images(seed, x, numbers))


def other_class(scores: Tensor, y: Tensor, rank: int) -> Tensor:
    """The class with the rank-th highest score among all but y."""
    others = scores.scatter(1, y[:, None], -torch.inf)
    return others.argsort(1, descending=True)[:, rank - 1]


def checkpoints(steps: int) -> list[int]:
    """The steps after which the step size is reconsidered."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return sorted({step for share in shares[1:] if (step := math.ceil(round(share * steps, 6))) < steps})


@dataclass
class State:
    """The images still under attack, one row each."""

    index: Tensor  # in the batch
    x: Tensor
    y: Tensor
    target: Tensor
    now: Tensor
    before: Tensor  # the previous point
    slope: Tensor  # gradient of the loss at `now`
    loss: Tensor
    best: Tensor
    best_slope: Tensor
    best_loss: Tensor
    step: Tensor  # its size
    rises: Tensor  # number of steps since the last checkpoint that raised the loss
    checked_loss: Tensor  # best loss at the last checkpoint
    halved: Tensor  # whether the step was halved there

    def keep(self, index: Tensor) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[index])


class Search:
    """One run over a batch; an image that fools the model leaves the batch at the next checkpoint."""

    def __init__(
        self, model: nn.Module, loss: Loss, x: Tensor, start: Tensor, y: Tensor, target: Tensor, eps: float
    ) -> None:
        self.model, self.loss, self.eps = model, loss, eps
        self.result = Adversarial(x, y)
        value, slope, fooled = self.evaluate(start, y, target)
        index, zeros = torch.arange(len(x), device=x.device), torch.zeros_like(value)
        self.result.update_at(index, start, fooled)
        self.state = State(
            index, x, y, target, start, start, slope, value, start, slope, value,
            torch.full_like(value, 2 * eps), zeros, value, torch.zeros_like(fooled),
        )  # fmt: skip

    def evaluate(self, images: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> loss [b], its gradient, and whether the model errs [b]."""
        kept = {}

        def ascend(images: Tensor) -> Tensor:
            scores = self.model(images)
            losses = self.loss(scores, y, target)
            kept["loss"], kept["fooled"] = losses.detach(), scores.detach().argmax(1) != y
            return losses.sum()

        slope = gradient(ascend, images)
        return kept["loss"], slope, kept["fooled"]

    def run(self, steps: int) -> Adversarial:
        checks, last = checkpoints(steps), 0
        for step in range(1, steps + 1):
            self.advance(momentum=step > 1)
            if step in checks:
                self.check(step - last)
                last = step
                survivors = (~self.result.fooled[self.state.index]).nonzero().squeeze(1)
                if not len(survivors):
                    break
                self.state.keep(survivors)
        return self.result

    def advance(self, momentum: bool) -> None:
        s = self.state
        weight = 0.75 if momentum else 1.0
        low, high = (s.x - self.eps).clamp(min=0), (s.x + self.eps).clamp(max=1)
        ahead = (s.now + spread(s.step) * s.slope.sign()).clamp(low, high)
        moved = (s.now + weight * (ahead - s.now) + (1 - weight) * (s.now - s.before)).clamp(low, high)
        value, slope, fooled = self.evaluate(moved, s.y, s.target)
        self.result.update_at(s.index, moved, fooled)
        s.rises = s.rises + (value > s.loss)
        s.before, s.now, s.slope, s.loss = s.now, moved, slope, value
        better = value > s.best_loss
        s.best = torch.where(spread(better), moved, s.best)
        s.best_slope = torch.where(spread(better), slope, s.best_slope)
        s.best_loss = torch.where(better, value, s.best_loss)

    def check(self, steps: int) -> None:
        """Halve steps where needed; `steps` were taken since the last checkpoint."""
        s = self.state
        stuck = ~s.halved & (s.checked_loss >= s.best_loss)
        halve = (s.rises < MIN_RISES * steps) | stuck
        s.step = torch.where(halve, s.step / 2, s.step)
        s.now = torch.where(spread(halve), s.best, s.now)
        s.slope = torch.where(spread(halve), s.best_slope, s.slope)
        s.loss = torch.where(halve, s.best_loss, s.loss)
        s.checked_loss, s.halved, s.rises = s.best_loss, halve, torch.zeros_like(s.rises)
