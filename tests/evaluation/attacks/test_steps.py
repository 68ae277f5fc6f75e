"""The steps of PGD and the objectives against loops over single numbers."""

import math

import pytest
import torch

from mspcaps.capsules.losses import margin_loss
from mspcaps.evaluation.attacks import OBJECTIVES, pgd_steps
from mspcaps.evaluation.attacks.objectives import targeted_dlr


def test_steps_against_a_loop_over_pixels():
    """J = sum (x - t)^2: the slope of a pixel is 2 (x - t), whatever the others are."""
    generator = torch.Generator().manual_seed(0)
    x, t, noise = torch.rand(3, 2, 3, 1, 2, generator=generator, dtype=torch.float64)
    start = (x + 0.2 * noise - 0.1).clamp(0, 1)
    found = pgd_steps(lambda images: (images - t).square().sum(), x, start, 0.1, 0.03, 5)
    for centre, target, pixel, end in zip(*(v.flatten().tolist() for v in (x, t, start, found)), strict=True):
        for _ in range(5):
            pixel += math.copysign(0.03, pixel - target)
            pixel = min(max(pixel, centre - 0.1, 0.0), centre + 0.1, 1.0)
        assert end == pytest.approx(pixel, abs=1e-12)
    assert not found.requires_grad


@pytest.mark.parametrize("y", [0, 1, 2, 3])
def test_objectives_against_their_formulas(y):
    scores = [0.3, 0.95, 0.2, 0.05]
    ordered, others = sorted(scores, reverse=True), [s for k, s in enumerate(scores) if k != y]
    row, label = torch.tensor([scores]), torch.tensor([y])
    found = {name: float(objective(row, label)) for name, objective in OBJECTIVES.items()}
    assert found["cross_entropy"] == pytest.approx(math.log(sum(map(math.exp, scores))) - scores[y], abs=1e-6)
    assert found["cw"] == pytest.approx(max(others) - scores[y], abs=1e-6)
    assert found["dlr"] == pytest.approx((max(others) - scores[y]) / (ordered[0] - ordered[2]), abs=1e-6)
    odds = [s / (1 - s) for s in scores]
    assert found["log_odds"] == pytest.approx(math.log(sum(odds) / odds[y]), abs=1e-5)
    push = 0.5 * sum(max(0, s - 0.1) ** 2 for s in others)
    assert found["margin"] == pytest.approx(max(0, 0.9 - scores[y]) ** 2 + push, abs=1e-6)
    target = (y + 1) % 4
    towards = float(targeted_dlr(row, label, torch.tensor([target])))
    span = ordered[0] - (ordered[2] + ordered[3]) / 2
    assert towards == pytest.approx((scores[target] - scores[y]) / span, abs=1e-6)


def test_the_margin_loss_of_a_batch_is_the_mean_of_its_images():
    scores, y = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 4, 0])
    assert float(margin_loss(scores, y)) == pytest.approx(float(OBJECTIVES["margin"](scores, y).mean()))
