"""The Square attack (Andriushchenko et al., Square Attack: a query-efficient black-box attack, ECCV 2020), for Linf.

It asks the model for scores and never for gradients, so masked gradients do not stop it: where it beats an attack that
uses them, those gradients are worthless. It starts with vertical stripes of +-eps. Then it sets a square at a random
place to +-eps, with one sign per channel, and keeps the change if the loss rises. The square covers a share p of the
image, 0.8 at first and halved after 0.1, 0.5, 2, 5, 10, 20, 40, 60 and 80 % of the queries.
"""

from functools import partial

import torch
from torch import Tensor, nn

from mspcaps.evaluation.attacks.common import Adversarial, Draws, attacked, run_attempts, spread
from mspcaps.evaluation.attacks.objectives import Objective, find_objective

INITIAL_P = 0.8
HALVED_AFTER = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # share of the queries
DROP_EVERY = 10  # queries until fooled images leave the batch, which makes the device wait


def square(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cw", *, steps: int = 5000,
    restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `pgd`; `steps` are queries."""
    with attacked(model, x, y, eps, steps, restarts) as classes, torch.no_grad():
        loss = find_objective(objective, model, classes)
        attempts = [
            partial(search, model=model, loss=loss, eps=eps, steps=steps, first=restart * (2 * steps + 1))
            for restart in range(restarts)
        ]
        return run_attempts(attempts, model, x, y, Draws.for_images(seed, x, numbers))


def search(
    x: Tensor, y: Tensor, draws: Draws, model: nn.Module, loss: Objective, eps: float, steps: int, first: int
) -> Adversarial:
    """`first` is the number of the first draw."""
    result, index = Adversarial(x, y), torch.arange(len(x), device=x.device)
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    channels, width = x.shape[1], x.shape[3]
    stripes = draws.uniform(first, channels * width).view(len(x), channels, 1, width)
    best = torch.where(stripes < 0.5, low, high)
    scores = model(best)
    best_loss = loss(scores, y)
    result.update(best, scores)
    for query in range(1, steps):
        if query % DROP_EVERY == 1:
            kept = (~result.fooled[index]).nonzero().squeeze(1)
            if not len(kept):
                break
            if len(kept) < len(index):
                index, best, best_loss, low, high = (t[kept] for t in (index, best, best_loss, low, high))
                draws = draws.of(kept)
        tried = with_square(best, low, high, side_of(query, steps, x), draws, first + query)
        scores = model(tried)
        value, wrong = loss(scores, y[index]), scores.argmax(1) != y[index]
        better = (value > best_loss) | wrong
        best = torch.where(spread(better), tried, best)
        best_loss = torch.where(better, value, best_loss)
        result.update_at(index, best, wrong)
    return result


def side_of(query: int, steps: int, x: Tensor) -> int:
    """Side of the square in pixels."""
    p = INITIAL_P / 2 ** sum(query > after * steps for after in HALVED_AFTER)
    height, width = x.shape[2:]
    return min(max(round((p * height * width) ** 0.5), 1), height, width)


def with_square(best: Tensor, low: Tensor, high: Tensor, side: int, draws: Draws, draw: int) -> Tensor:
    """Set a square in every image to +-eps, at its own place and with its own sign per channel."""
    channels, height, width = best.shape[1:]
    random = draws.uniform(draw, 2 + channels)  # [b, 2 + c]
    top = (random[:, 0] * (height - side + 1)).long()[:, None]
    left = (random[:, 1] * (width - side + 1)).long()[:, None]
    rows, columns = torch.arange(height, device=best.device), torch.arange(width, device=best.device)
    down = (rows >= top) & (rows < top + side)  # [b, h]
    across = (columns >= left) & (columns < left + side)  # [b, w]
    inside = down[:, None, :, None] & across[:, None, None, :]  # [b, 1, h, w]
    negative = random[:, 2:, None, None] < 0.5  # [b, c, 1, 1]
    return torch.where(inside, torch.where(negative, low, high), best)
