"""Ledger entries as the trainer writes them, with curves of our choice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspcaps.training import load_recipe


def entry(name: str, accuracies: list[float], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Of a recipe under recipes/; the curve is filled up with its first value to the recipe's epochs."""
    recipe = replace(load_recipe(name), seed=seed)
    curve = [accuracies[0]] * (recipe.epochs - len(accuracies)) + accuracies
    best = max(curve)
    made = {
        "model": recipe.model, "params": 344_320, "dataset": recipe.dataset,
        "provenance": f"{recipe.dataset} & <such>.",
        "recipe": recipe.resolve().to_dict(), "seed": seed, "epochs": recipe.epochs,
        "accuracy": {"last": curve[-1], "best": best, "best_epoch": curve.index(best) + 1},
        "curve": {"loss": [1 / (1 + i) for i in range(len(curve))], "accuracy": curve},
        "seconds": {"train": 100.0 + 10 * seed, "per_epoch": 0.3}, "device": "a GPU", "processes": 1,
        "precision": "bf16", "engine": "cudagraph", "software": {"mspcaps": "0.1.0"}, "commit": "0123456789abcdef",
        "weights_sha256": "f" * 64,
    }  # fmt: skip
    return {**made, **changes}


def shortened(name: str, accuracy: float, epochs: int) -> dict[str, Any]:
    """Of a recipe under recipes/, but with fewer epochs, as its name says."""
    made = entry(name, [60.0, accuracy])
    made["recipe"] |= {"epochs": epochs, "name": f"{made['recipe']['name']}+epochs={epochs}"}
    made["epochs"] = epochs
    made["curve"] = {key: values[-epochs:] for key, values in made["curve"].items()}
    return made


def enter(results: Path, made: dict[str, Any], where: str | None = None, kind: str = "runs") -> Path:
    name = f"{made['recipe'].get('name')}-seed{made['seed']}.json"
    path = results / kind / (where or f"{made['dataset']}/{made['model']}/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made))
    return path


def enter_seeds(results: Path, name: str, lasts: list[float], kind: str = "runs") -> None:
    """One run of a recipe for every accuracy after the last epoch, which is also the best."""
    for seed, last in enumerate(lasts):
        enter(results, entry(name, [70.0, last], seed), kind=kind)


def enter_three_seeds(results: Path) -> None:
    """T on CIFAR-10: 88.40 ± 0.26 after the last epoch, 88.80 ± 0.10 after the best."""
    for seed, accuracies in enumerate(([80.0, 88.9, 88.6], [80.0, 88.7, 88.5], [80.0, 88.8, 88.1])):
        enter(results, entry("paper/cifar10/mspcaps_t", accuracies, seed))
