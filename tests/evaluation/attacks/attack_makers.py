"""Small models to attack, and a plain Auto-PGD of one image."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

EPS, CLASSES, SHAPE = 0.08, 5, (2, 6, 6)
MARKS = {
    10: [3, 5, 6, 7, 8, 9],
    100: [22, 41, 57, 70, 80, 87, 93, 99],
}  # by hand: 22 %, then 19, 16, 13, 10, 7, 6, 6 more


def small_net(seed: int = 0) -> nn.Module:
    """Smooth and in double precision, so that rounding does not turn the sign of a gradient."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(SHAPE[0], 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.double().eval()


def images_for(model: nn.Module, n: int = 24, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images that the model gets right, the last one excepted."""
    x = torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[-1] = (y[-1] + 1) % CLASSES
    return x, y


class Masked(nn.Module):
    """Rounds the pixels: gradients are zero almost everywhere, and nothing is gained."""

    def __init__(self, inner: nn.Module, levels: int = 16) -> None:
        super().__init__()
        self.inner, self.levels = inner, levels

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * self.levels).round() / self.levels)


def plain_apgd(
    loss_of: Callable[[Tensor], Tensor], image: Tensor, start: Tensor, eps: float, steps: int
) -> list[Tensor]:
    """Algorithm 1 of Croce and Hein for one image; all points that it looks at, in order."""

    def f(x: Tensor) -> tuple[float, Tensor]:
        x = x.clone().requires_grad_()
        loss = loss_of(x)
        return loss.item(), torch.autograd.grad(loss, x)[0]

    def project(x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, image - eps), image + eps).clamp(0, 1)

    x, before, step, seen = start, start, 2 * eps, [start]
    value, slope = f(x)
    best, best_at_mark, halved, rises, last = (value, x, slope), value, False, 0, 0
    for k in range(1, steps + 1):
        z = project(x + step * slope.sign())
        moved = z if k == 1 else project(x + 0.75 * (z - x) + 0.25 * (x - before))
        before, x = x, moved
        new, slope = f(x)
        rises, value = rises + (new > value), new
        seen.append(x)
        if value > best[0]:
            best = value, x, slope
        if k in MARKS[steps]:
            halved = rises < 0.75 * (k - last) or (not halved and best[0] == best_at_mark)
            if halved:
                step /= 2
                value, x, slope = best
            best_at_mark, rises, last = best[0], 0, k
    return seen
