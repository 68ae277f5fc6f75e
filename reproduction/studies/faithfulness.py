"""Is an explanation true? Cover the patches it names, or everything else, and watch the score of the class.

Deletion: cells of a common grid are covered in the order that a method gives them, the most important first; the faster
the class score falls, the better, so a small area under the curve is good. Insertion starts from a covered image and
uncovers cells in the same order; there a large area is good. Both are from Petsiuk, Das and Saenko (RISE, 2018).

A method must beat more than chance. Covering scattered cells spoils an image more than covering one region, and
objects are in the middle of most images: the map of *another* image shows how much of a score is due to that. The map
of the runner-up shows how specific a map is to its class.

In addition, named_patches.py covers only the patches that the page names.

    python -m reproduction.studies.faithfulness WEIGHTS [--data cifar10] [--n 500] [--threads 1]

measures the first n test images and writes results/explanation/<model>-<dataset>.json; `make regenerate` then writes
the figures into docs/explain.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import load_for
from mspcaps.explanation import Explanation, explain
from mspcaps.explanation.heat import ORDERS, mean_image
from mspcaps.files import sha256_of, write_json
from mspcaps.models import config_of, load_model, weights_path
from mspcaps.models.layers import in_eval_mode
from mspcaps.progress import Progress as ProgressBar
from mspcaps.training.ledger import device_name, git_commit, software
from reproduction.studies.named_patches import DRAWS, drops
from reproduction.study_tables import METHODS

SEEDS = (0, 1, 2)  # of the random orders
Progress = Callable[[int, int], None]  # curves done, curves in all
Score = Callable[[Tensor], Tensor]  # images [b, c, h, w] -> class scores [b, K]


@dataclass(frozen=True)
class Setting:
    """How images are covered."""

    cell: int = 4  # pixels
    fill: str = "mean"  # colour of the data set, or "blur"
    per_step: int = 2  # cells between two points of the curve

    def covered(self, x: Tensor, blank: Tensor) -> Tensor:
        """What covered pixels show, as an image; `blank` is all of the mean colour."""
        if self.fill == "mean":
            return blank
        if self.fill != "blur":
            raise MspcapsError(f"fill must be mean or blur, not {self.fill!r}")
        for _ in range(3):  # three box filters are close to a Gaussian, here with a deviation of 6.5 pixels
            x = F.avg_pool2d(F.pad(x, (6, 6, 6, 6), mode="reflect"), 13, 1)
        return x


SETTINGS = (Setting(4, "mean", 4), Setting(8, "mean", 1), Setting(4, "blur", 4))  # measured for the docs


def cell_means(heat: Tensor, cell: int) -> Tensor:
    """[b, H, W] -> [b, n]: a map averaged per cell."""
    height, width = heat.shape[1:]
    if height % cell or width % cell:
        raise MspcapsError(f"cells of {cell} pixels do not tile images of {height} x {width}")
    return F.avg_pool2d(heat[:, None], cell).flatten(1)


def ranks(values: Tensor) -> Tensor:
    """[b, n] -> int64 [b, n]: 0 for the highest value; equal values in random order, not by place."""
    shuffle = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)
    order = shuffle[values[:, shuffle].argsort(dim=1, descending=True, stable=True)]
    return order.argsort(1)


@torch.no_grad()
def curve(
    score: Score, x: Tensor, labels: Tensor, rank: Tensor, covered: Tensor, setting: Setting, insert: bool
) -> Tensor:
    """Score of each image's class [b, points], from the first cell to the last; `covered` shows no cell."""
    grid = (x.shape[2] // setting.cell, x.shape[3] // setting.cell)
    n, points = rank.shape[1], []
    for done in [*range(0, n, setting.per_step), n]:
        touched = (rank < done).view(-1, 1, *grid)
        touched = touched.repeat_interleave(setting.cell, 2).repeat_interleave(setting.cell, 3)
        image = torch.where(touched == insert, x, covered)
        points.append(score(image).gather(1, labels[:, None])[:, 0])
    return torch.stack(points, 1)


def area(curves: Tensor, n: int, per_step: int) -> Tensor:
    """[b, points] -> [b]: the mean height of each curve, cells on the axis running from 0 to 1."""
    places = torch.tensor([*range(0, n, per_step), n], dtype=curves.dtype, device=curves.device) / n
    return torch.trapezoid(curves, places, dim=1)


@torch.enable_grad()
def score_gradient(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """[b, c, h, w]: of the score of each image's class with respect to its pixels."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).gather(1, labels[:, None]).sum(), leaf)
    return gradient


def maps_of(model: nn.Module, explanation: Explanation, labels: Tensor) -> dict[str, Tensor]:
    """Heat maps [b, H, W] of every method but the random one, for the given classes."""
    x = explanation.images
    gradient = score_gradient(model, x, labels)
    difference = x - mean_image(explanation.model, x)  # a pixel of the mean colour counts nothing
    maps = {
        "part_whole": explanation.heat_map(labels),
        "gradient": gradient.abs().sum(1),
        "input_gradient": (difference * gradient).sum(1).abs(),
        "part_whole_second": explanation.heat_map(explanation.ranking[:, 1]),
    }
    for name in ("part_whole", "gradient"):
        maps[f"{name}_other"] = maps[name].roll(1, 0)
    return {name: heat.detach() for name, heat in maps.items()}


def orders_of(maps: dict[str, Tensor], setting: Setting, offset: int) -> list[tuple[str, Tensor]]:
    """(method, ranks [b, n]) of all that is measured; `offset` gives each batch its own random orders."""
    orders = [(name, ranks(cell_means(heat, setting.cell))) for name, heat in maps.items()]
    shape = orders[0][1].shape
    for seed in SEEDS:
        values = torch.rand(shape, generator=torch.Generator().manual_seed(1_000_003 * seed + offset))
        orders.append(("random", ranks(values.to(orders[0][1].device))))
    return orders


def measure(
    model: nn.Module,
    data: ImageSet,
    settings: Sequence[Setting],
    batch_size: int = 100,
    progress: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """Over all images of `data`, for the class the model predicts: "settings", curves and areas of every method, and
    "named", the named patches against random ones."""
    device = next(model.parameters()).device
    batches = list(data.images.split(batch_size))
    if len(batches[-1]) == 1 or len(data) < 2:
        raise MspcapsError("the map of another image needs at least two images in every batch")
    stores: list[dict[tuple[str, str], list[Tensor]]] = [{} for _ in settings]
    falls: dict[str, list[Tensor]] = {}
    curves, done = 2 * (len(METHODS) - 1 + len(SEEDS)) * len(settings) * len(batches), 0
    with in_eval_mode(model):
        for number, batch in enumerate(batches):
            x = batch.to(device).float() / 255
            explanation = explain(model, x)
            labels = explanation.ranking[:, 0]
            for group, fall in drops(explanation, labels, number).items():
                falls.setdefault(group, []).append(fall)
            maps = maps_of(model, explanation, labels)
            for setting, store in zip(settings, stores, strict=True):
                covered = setting.covered(x, mean_image(explanation.model, x))
                for name, rank in orders_of(maps, setting, number):
                    for way in ("deletion", "insertion"):
                        points = curve(model, x, labels, rank, covered, setting, way == "insertion")
                        store.setdefault((name, way), []).append(points.cpu())
                        progress(done := done + 1, curves)
    return {
        "settings": [summary(setting, store, data.size) for setting, store in zip(settings, stores, strict=True)],
        "named": {group: fall_summary(torch.cat(parts)) for group, parts in falls.items()},
    }


def fall_summary(falls: Tensor) -> dict[str, list[float]]:
    """[n, 2]: how far each image's score falls without its named patches and without random ones."""
    own, random = falls.unbind(1)
    return {"named": mean_and_error(own), "random": mean_and_error(random), "less_random": mean_and_error(own - random)}


def summary(setting: Setting, store: dict[tuple[str, str], list[Tensor]], size: tuple[int, int]) -> dict[str, Any]:
    """Means over the images with their standard errors; the random orders of an image count as one."""
    cells = (size[0] // setting.cell) * (size[1] // setting.cell)
    methods: dict[str, dict[str, Any]] = {}
    for way in ("deletion", "insertion"):
        areas = {}
        for name in METHODS:
            parts = store[name, way]
            if name == "random":  # batch by batch, one curve per seed
                parts = [torch.stack(parts[i : i + len(SEEDS)]).mean(0) for i in range(0, len(parts), len(SEEDS))]
            whole = torch.cat(parts)
            areas[name] = area(whole, cells, setting.per_step)
            methods.setdefault(name, {})[way] = {
                "auc": mean_and_error(areas[name]),
                "curve": [round(value, 5) for value in whole.mean(0).tolist()],
            }
        for name in METHODS:
            difference = areas[name] - areas["random"]
            better = difference < 0 if way == "deletion" else difference > 0
            methods[name][way] |= {
                "less_random": mean_and_error(difference),  # paired, image by image
                "less_gradient": mean_and_error(areas[name] - areas["gradient"]),
                "better_than_random": round(100 * better.double().mean().item(), 2),  # percent of the images
            }
    return {"cell": setting.cell, "fill": setting.fill, "per_step": setting.per_step, "methods": methods}


def mean_and_error(values: Tensor) -> list[float]:
    """[mean, standard error of the mean]"""
    values = values.double()
    return [round(values.mean().item(), 5), round((values.std() / len(values) ** 0.5).item(), 5)]


def origin(model: nn.Module, images: ImageSet, split: str, weights: str) -> dict[str, Any]:
    """What was measured and how: the first images of a split, the weights, the machine and the software."""
    return {
        "model": config_of(model)["name"],
        "dataset": images.name,
        "split": split,
        "n": len(images),
        "images": f"the first {len(images)}",
        "weights_sha256": sha256_of(weights_path(weights)),
        "commit": git_commit(),
        "device": device_name(next(model.parameters()).device),
        "software": software(),
    }


def main(
    weights: str, data: str | None = None, n: int = 500, threads: int = 1, out: Path = Path("results/explanation")
) -> None:
    """Measure weights on the first n test images of the data, by default what they were trained on."""
    torch.set_num_threads(threads)
    model = load_model(weights)
    images = load_for(model, data, "test").subset(slice(0, n))
    with ProgressBar("curves") as bar:
        measurements = measure(model, images, SETTINGS, progress=partial(bar.update, "curves"))
    entry = origin(model, images, "test", weights) | {
        "class": "the one the model chooses",
        "score": "length of the class capsule",
        "random_seeds": list(SEEDS),
        "random_draws": DRAWS,
        "orders": ORDERS,
        **measurements,
    }
    path = out / f"{entry['model']}-{entry['dataset']}.json"
    write_json(path, entry)
    print(path)


if __name__ == "__main__":
    import tyro  # not on every machine with a GPU, where Python calls main

    tyro.cli(main, config=(tyro.conf.PositionalRequiredArgs,))
