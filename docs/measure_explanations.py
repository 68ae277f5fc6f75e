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
from mspcaps.explain.faithfulness import SEEDS, Setting, measure, write_result
from mspcaps.explain.heat import ORDERS
from mspcaps.explain.named import DRAWS
from mspcaps.files import sha256_of
from mspcaps.training.ledger import device_name, git_commit, software
from mspcaps.weights import load_model, weights_path

SETTINGS = (Setting(4, "mean", 4), Setting(8, "mean", 1), Setting(4, "blur", 4))


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
    assert isinstance(model.config, dict)
    entry = {
        "model": model.config["name"],
        "dataset": images.name,
        "split": "test",
        "n": len(images),
        "images": f"the first {len(images)}",
        "class": "the one the model chooses",
        "score": "length of the class capsule",
        "random_seeds": list(SEEDS),
        "random_draws": DRAWS,
        "orders": ORDERS,
        **found,
        "weights_sha256": sha256_of(weights_path(weights)),
        "commit": git_commit(),
        "device": device_name(next(model.parameters()).device),
        "software": software(),
    }
    path = out / f"{entry['model']}-{entry['dataset']}.json"
    write_result(path, entry)
    print(path)


if __name__ == "__main__":
    tyro.cli(main)
