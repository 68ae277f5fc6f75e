"""Compares ways of making the heat map on training images: results/explanation/candidates-<model>-<dataset>.json.

    python -m reproduction.studies.heat_maps WEIGHTS [--data cifar10] [--n 150] [--threads 1]

The heat map of explanation/heat.py was chosen by this comparison, without test images. The rejected ways are kept only
here.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mspcaps.evaluation import load_for
from mspcaps.explanation import Explanation, explain
from mspcaps.explanation.heat import effects, evidence, mean_image
from mspcaps.files import write_json
from mspcaps.models import load_model
from reproduction.studies.faithfulness import (
    SETTINGS,
    Setting,
    area,
    cell_means,
    curve,
    mean_and_error,
    origin,
    ranks,
    score_gradient,
)

STEPS = 32
TITLES = {
    "gradient": "gradient, absolute",
    "capsules": "integrated gradients of the routing alone, from blank to real capsules, spread over the patches",
    "image": "integrated gradients of |s_j| from blank to real pixels",
    "image_magnitude": "mean absolute gradient of |s_j| between blank and real pixels",
    "uncover_2": "uncovering patch by patch, 2 orders",
    "uncover_4": "uncovering patch by patch, 4 orders",
    "uncover_8": "uncovering patch by patch, 8 orders",
    "uncover_4_fine": "uncovering patch by patch, 4 orders, the finest scale alone",
    "random": "random order",
}


def slopes(model: Any, ends: list[Tensor], others: list[Tensor], labels: Tensor, image: bool) -> list[Tensor]:
    """Slopes of |s_j| at STEPS points between two ends, capsules or an image: [steps, ...] for each of them."""
    steps: list[tuple[Tensor, ...]] = []
    for a in (torch.arange(STEPS) + 0.5) / STEPS:
        points = [(o + a * (e - o)).detach().requires_grad_() for e, o in zip(ends, others, strict=True)]
        with torch.enable_grad():
            scores = model(points[0]) if image else model.forward_head(points)
            norms = evidence(model, scores)
            steps.append(torch.autograd.grad(norms.gather(1, labels[:, None]).sum(), points))
    return [torch.stack(one) for one in zip(*steps, strict=True)]


def by_slopes(explanation: Explanation, labels: Tensor) -> dict[str, Tensor]:
    """The maps made of gradients, [b, H, W] each."""
    model: Any = explanation.model
    x, blank = explanation.images, model.normalize.mean
    with torch.no_grad():
        u, u0 = model.forward_features(x), model.forward_features(blank.expand_as(x[:1]))
    parts = [
        scale.spread((slope.mean(0) * (own - other)).sum(-1))
        for scale, slope, own, other in zip(explanation.scales, slopes(model, u, u0, labels, False), u, u0, strict=True)
    ]
    (along,) = slopes(model, [x], [blank.expand_as(x)], labels, True)  # [steps, b, c, h, w]
    return {
        "gradient": score_gradient(model, x, labels).abs().sum(1),
        "capsules": torch.stack(parts).sum(0),
        "image": (along.mean(0) * (x - blank)).sum(1),
        "image_magnitude": along.abs().mean(0).sum(1),
    }


def by_uncovering(explanation: Explanation, labels: Tensor) -> dict[str, Tensor]:
    images, scales, maps = torch.arange(len(labels)), explanation.scales, {}
    for orders in (2, 4, 8):
        values = effects(explanation.model, explanation.images, scales, orders)
        spread = [scale.spread(value[images, :, labels]) for scale, value in zip(scales, values, strict=True)]
        maps[f"uncover_{orders}"] = torch.stack(spread).mean(0)
        if orders == 4:
            maps["uncover_4_fine"] = spread[0]
    return maps


def compare(explanation: Explanation, maps: dict[str, Tensor], labels: Tensor, setting: Setting) -> dict[str, Any]:
    """Areas of every map [mean, standard error], and their paired differences from the gradient's."""
    x, n = explanation.images, cell_means(maps["gradient"], setting.cell).shape[1]
    covered, rows = setting.covered(x, mean_image(explanation.model, x)), dict[str, Any]()
    maps = maps | {"random": torch.rand(x.shape[0], *x.shape[2:], generator=torch.Generator().manual_seed(0))}
    for way in ("deletion", "insertion"):
        areas = {}
        for name in TITLES:
            rank = ranks(cell_means(maps[name], setting.cell))
            points = curve(explanation.model, x, labels, rank, covered, setting, way == "insertion")
            areas[name] = area(points, n, setting.per_step)
            rows.setdefault(name, {"title": TITLES[name]})[way] = {
                "auc": mean_and_error(areas[name]),
                "less_gradient": mean_and_error(areas[name] - areas["gradient"]),
            }
    return {"cell": setting.cell, "fill": setting.fill, "per_step": setting.per_step, "candidates": rows}


def main(
    weights: str, data: str | None = None, n: int = 150, threads: int = 1, out: Path = Path("results/explanation")
) -> None:
    """Compare them on the first n training images of the data, by default what the weights were trained on."""
    torch.set_num_threads(threads)
    model = load_model(weights).eval()
    images = load_for(model, data, "train").subset(slice(0, n))
    explanation = explain(model, images.images.float() / 255)
    labels = explanation.ranking[:, 0]
    maps = by_slopes(explanation, labels) | by_uncovering(explanation, labels)
    entry = origin(model, images, "train", weights)
    entry["settings"] = [compare(explanation, maps, labels, setting) for setting in SETTINGS]
    path = out / f"candidates-{entry['model']}-{entry['dataset']}.json"
    write_json(path, entry)
    print(path)


if __name__ == "__main__":
    import tyro  # not on every machine with a GPU, where Python calls main

    tyro.cli(main, config=(tyro.conf.PositionalRequiredArgs,))
