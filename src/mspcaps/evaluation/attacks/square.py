"""The Square attack (Andriushchenko et al., Square Attack: a query-efficient black-box attack, ECCV 2020), for Linf.

It asks the model for scores and never for a gradient, so masked gradients do not stop it: where it beats an attack that
sees them, those gradients are worth nothing. It starts with vertical stripes of +-eps. Then it sets a square at a
random place to +-eps, one sign for each channel, and keeps it if the loss rises. The square covers a share p of the
image, 0.8 at first and halved after 0.1, 0.5, 2, 5, 10, 20, 40, 60 and 80 % of the queries.
"""

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks.common import Attempt, Draws, Found, attacked, attempts, check_counts, spread
from mspcaps.evaluation.attacks.objectives import Objective, find_objective

HALVED_AFTER = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # share of the queries
SORTED_OUT = 10  # queries between two looks at which images are found: each makes the device wait


def square(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cw", *, steps: int = 5000, share: float = 0.8,
    restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `pgd`; `steps` are queries, `share` is the first p."""
    check_counts(steps, restarts)
    if not 0 < share <= 1:
        raise MspcapsError(f"share is {share}, but must be above 0 and at most 1")
    with attacked(model, x, y, eps) as classes, torch.no_grad():
        loss = find_objective(objective, model, classes)

        def again(restart: int) -> Attempt:
            return lambda x, y, draws: search(model, loss, x, y, eps, steps, share, draws, restart * (2 * steps + 1))

        return attempts(map(again, range(restarts)), model, x, y, Draws.for_images(seed, x, numbers))


def search(
    model: nn.Module, loss: Objective, x: Tensor, y: Tensor, eps: float, steps: int, share: float, draws: Draws,
    first: int,
) -> Found:  # fmt: skip
    """`first` is the number of the first draw."""
    found, number = Found(x, y), torch.arange(len(x), device=x.device)
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    channels, width = x.shape[1], x.shape[3]
    stripes = draws.uniform(first, channels * width).view(len(x), channels, 1, width)
    best = torch.where(stripes < 0.5, low, high)
    scores = model(best)
    best_loss = loss(scores, y)
    found.see(best, scores)
    for query in range(1, steps):
        if query % SORTED_OUT == 1:
            left = (~found.fooled[number]).nonzero().squeeze(1)
            if not len(left):
                break
            if len(left) < len(number):
                number, best, best_loss, low, high = (t[left] for t in (number, best, best_loss, low, high))
                draws = draws.of(left)
        tried = with_square(best, low, high, side_of(query, steps, share, x), draws, first + query)
        scores = model(tried)
        value, wrong = loss(scores, y[number]), scores.argmax(1) != y[number]
        better = (value > best_loss) | wrong
        best = torch.where(spread(better), tried, best)
        best_loss = torch.where(better, value, best_loss)
        found.mark(number, best, wrong)
    return found


def side_of(query: int, steps: int, share: float, x: Tensor) -> int:
    """Of the square, in pixels."""
    p = share / 2 ** sum(query > after * steps for after in HALVED_AFTER)
    height, width = x.shape[2:]
    return min(max(round((p * height * width) ** 0.5), 1), height, width)


def with_square(best: Tensor, low: Tensor, high: Tensor, side: int, draws: Draws, draw: int) -> Tensor:
    """Every image with a square of its own at +-eps, each channel with a sign of its own."""
    channels, height, width = best.shape[1:]
    drawn = draws.uniform(draw, 2 + channels)  # [b, 2 + c]
    top = (drawn[:, 0] * (height - side + 1)).long()[:, None]
    left = (drawn[:, 1] * (width - side + 1)).long()[:, None]
    rows, columns = torch.arange(height, device=best.device), torch.arange(width, device=best.device)
    down = (rows >= top) & (rows < top + side)  # [b, h]
    across = (columns >= left) & (columns < left + side)  # [b, w]
    inside = down[:, None, :, None] & across[:, None, None, :]  # [b, 1, h, w]
    sign = drawn[:, 2:, None, None] < 0.5  # [b, c, 1, 1]
    return torch.where(inside, torch.where(sign, low, high), best)
