"""The paper's figure under attack and the strongest attacks we have, on all test images of CIFAR-10.

    python -m reproduction.studies.attacks --weights capsnet=runs/.../last.safetensors resnet20=... resnet18=...

writes results/robustness/attack-*.json after every piece and skips the pieces that it has, so a stopped study can be
continued; `make regenerate` then writes the tables. First comes the paper's figure (FGSM and BIM with 10 steps, three
objectives) for T, L and CapsNet, then the strong attacks at 1, 2, 4 and 8 / 255 for all but CapsNet.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from mspcaps.bench.result import environment
from mspcaps.evaluation.attacks import attack
from mspcaps.evaluation.attacks.suite import Trial
from mspcaps.evaluation.robustness import Robustness, read_robustness, write_robustness
from mspcaps.files import sha256_of
from mspcaps.models import weights_path
from mspcaps.training import choose_device

SHIPPED = {"mspcaps_t": "mspcaps_t.cifar10", "mspcaps_l": "mspcaps_l.cifar10"}
FIGURE = ("mspcaps_t", "mspcaps_l", "capsnet")
GRID = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1)  # the paper's figure has no grid
BUDGETS = tuple(level / 255 for level in (8, 4, 2, 1))  # the largest first, the cheapest: few images survive for long
STRONG = ("apgd-100", "apgd-100:log_odds", "votes-20:log_odds", "square-1000", "apgd-100:targeted_dlr")
CHECKED = ("bim-10:margin", "bim-10:log_odds", "apgd-100", "apgd-100:log_odds")  # with all checks
LARGE = ("mspcaps_l", "resnet18", "capsnet")  # attacked in smaller batches

Piece = tuple[str, str, tuple[float, ...]]  # model, attack, budgets


def pieces(models: Mapping[str, str]) -> list[Piece]:
    """The most useful first, in case time runs out."""
    ordered: list[Piece] = []
    for objective in ("margin", "cross_entropy", "log_odds"):
        for model in FIGURE:
            ordered += [(model, f"{name}:{objective}", GRID) for name in ("fgsm", "bim-10") if model in models]
    for text in STRONG:
        for model in models:
            of_capsules = text.endswith("log_odds")
            if model != "capsnet" and not (of_capsules and model.startswith("resnet")):
                ordered += [(model, text, (eps,)) for eps in BUDGETS]
    return ordered


def read_stored(path: Path, digest: str) -> Robustness | None:
    """The stored result, if it is of these very weights."""
    stored = read_robustness(path) if path.is_file() else None
    return stored if stored and stored.weights_sha256 == digest else None


def is_done(stored: Robustness | None, text: str, budgets: tuple[float, ...]) -> bool:
    trial = Trial.parse(text)
    key = trial.name, trial.objective, trial.steps, trial.restarts
    curve = next((curve for curve in stored.curves if curve.key == key), None) if stored else None
    return curve is not None and all(curve.at(eps) is not None for eps in budgets)


def main(
    weights: tuple[str, ...] = (), results: Path = Path("results"), seconds: float = float("inf"),
    images: int | None = None, device: str | None = None,
) -> None:  # fmt: skip
    """Attack the shipped T and L and the `weights`, MODEL=FILE each; start no piece after so many seconds."""
    models = SHIPPED | dict(pair.split("=", 1) for pair in weights)
    where, began = choose_device(device), time.monotonic()
    machine, digests = environment(where), {model: sha256_of(weights_path(name)) for model, name in models.items()}
    for model, text, budgets in pieces(models):
        part = "" if images is None else f"-{images}"
        path = results / "robustness" / f"attack-{model}.cifar10{part}.json"
        if is_done(read_stored(path, digests[model]), text, budgets):
            continue
        if time.monotonic() - began > seconds:
            print(f"no time is left for {model} under {text}")
            return
        start, batch_size = time.monotonic(), None
        if where.type == "cuda":
            batch_size = 5000 if model in LARGE else 10_000
        result = attack(
            models[model], "cifar10", budgets, text, images=images, device=where, batch_size=batch_size,
            check=text in CHECKED,
        )  # fmt: skip
        write_robustness(path, result, machine)
        left = ", ".join(f"{255 * point.eps:.1f}/255: {point.accuracy:.2f} %" for point in result.curves[0].points)
        print(f"{model} under {text}, {time.monotonic() - start:.1f} s: {left}", flush=True)


if __name__ == "__main__":
    import tyro  # not on every machine with a GPU, where Python calls main

    tyro.cli(main)
