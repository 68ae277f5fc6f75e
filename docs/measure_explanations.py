"""Measures how faithful explanations are: results/explain/<model>-<dataset>.json, from trained weights.

    python docs/measure_explanations.py WEIGHTS [--data cifar10] [--n 500] [--threads 1] [--out results/explain]

Takes the first n test images. `python docs/make_explain.py` then writes the figures into docs/explain.md.
"""

from pathlib import Path
from typing import Annotated

import torch
import tyro

from mspcaps.cli.progress import counting
from mspcaps.evaluation import load_for
from mspcaps.explanation.faithfulness import SEEDS, SETTINGS, measure, origin
from mspcaps.explanation.heat import ORDERS
from mspcaps.explanation.named import DRAWS
from mspcaps.files import write_json
from mspcaps.models import load_model


def main(
    weights: tyro.conf.Positional[str],
    data: Annotated[str | None, tyro.conf.arg(help_behavior_hint="what the weights were trained on")] = None,
    n: int = 500,
    threads: int = 1,
    out: Path = Path("results/explain"),
) -> None:
    torch.set_num_threads(threads)
    model = load_model(weights)
    images = load_for(model, data, "test").subset(slice(0, n))
    with counting() as progress:
        found = measure(model, images, SETTINGS, progress=lambda done, of: progress("curves", done, of))
    entry = origin(model, images, "test", weights) | {
        "class": "the one the model chooses",
        "score": "length of the class capsule",
        "random_seeds": list(SEEDS),
        "random_draws": DRAWS,
        "orders": ORDERS,
        **found,
    }
    path = out / f"{entry['model']}-{entry['dataset']}.json"
    write_json(path, entry)
    print(path)


if __name__ == "__main__":
    tyro.cli(main)
