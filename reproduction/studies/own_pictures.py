"""How well the recipe for one's own images does on three sets of real pictures, beside ResNet-20 and shipped weights.

    python -m tools.picture_sets SETS                               fetches emoji, stamps and icons
    python -m reproduction.studies.own_pictures pack SETS           writes runs/picture_sets/*.npz, some 20 MB
    python -m reproduction.studies.own_pictures choose              compares settings on held-out training pictures
    python -m reproduction.studies.own_pictures measure             trains by recipes/pictures.toml, and tests
    python -m reproduction.studies.own_pictures memory              one epoch of each in a process of its own

`choose` and `measure` take --seconds, start no run that cannot finish within them, and skip runs that the ledger
results/pictures has; `make regenerate` then writes the tables of docs/own_data.md. `choose` never looks at the test
pictures: write what it finds best into recipes/pictures.toml before `measure`.
"""

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from mspcaps.bench.result import environment
from mspcaps.data import Augmentation, load_dataset
from mspcaps.files import write_json
from mspcaps.training import Recipe, choose_device, list_runs, recipe_for
from mspcaps.training.images import MIN_SIDE
from mspcaps.training.sweep import run_sweep
from reproduction.own_pictures import COMPARED, MEMORY, WEIGHED

SETS = ("emoji", "stamps", "icons")
PACKED, RESULTS, RUNS = Path("runs/picture_sets"), Path("results/pictures"), Path("runs")
HELD_OUT = 5  # one training picture in five
SETTINGS: dict[str, tuple[float | bool, ...]] = {
    "epochs": (60, 120), "lr": (5e-4, 1e-3, 2e-3), "flip": (False, True),
}  # fmt: skip


def pack(folder: Path, out: Path = PACKED) -> None:
    """Every set as `mspcaps train --data FOLDER` would read and split it, in one file."""
    out.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        train, test = (load_dataset(folder / name, split) for split in ("train", "test"))
        arrays = {
            f"{key}_{split}": array.numpy()
            for split, data in (("train", train), ("test", test))
            for key, array in (("x", data.images), ("y", data.labels))
        }
        arrays["classes"] = np.array(train.classes)
        np.savez_compressed(out / f"{name}.npz", allow_pickle=False, **arrays)
        shape = " x ".join(map(str, train.images.shape[1:]))
        print(f"{name}: {len(train):,} + {len(test):,} pictures of {len(train.classes)} classes, {shape}")


def choice(img_size: int | None = None) -> list[Recipe]:
    """Every setting on held-out training pictures of every set, one seed each; setting by setting, so that the finished
    runs are comparable if time runs out."""
    recipes = []
    for epochs, lr, flip in itertools.product(*SETTINGS.values()):
        for name in SETS:
            file = PACKED / f"{name}.npz"
            train = load_dataset(file, "train")
            crop = (img_size or max(MIN_SIDE, *train.size)) // 8
            augment, held_out = Augmentation(crop=crop, flip=bool(flip)), len(train) // HELD_OUT
            recipes.append(
                recipe_for(file, epochs=epochs, lr=lr, augment=augment, img_size=img_size, held_out=held_out)
            )
    return recipes


def measured(seeds: int, img_size: int | None = None) -> list[Recipe]:
    """The recipe on the test pictures; seed by seed, so that the finished runs are comparable if time runs out."""
    return [
        recipe_for(PACKED / f"{name}.npz", model=model, init=init, img_size=img_size, seed=seed)
        for seed in range(seeds)
        for name in SETS
        for model, init in COMPARED
    ]


def train_once(model: str, file: Path, img_size: int | None) -> dict[str, Any]:
    """One epoch of training on a CPU in a process of its own: its size and the most memory that it took, with Python,
    PyTorch, the images and the page."""
    with tempfile.TemporaryDirectory() as place:
        size = [] if img_size is None else ["--img-size", str(img_size)]
        where = ["--out", f"{place}/runs", "--results", f"{place}/results", "--device", "cpu"]
        command = ["train", "--data", str(file), "--model", model, "--epochs", "1", *size, *where]
        process = subprocess.Popen([sys.executable, "-m", "mspcaps", *command], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{model} on {file} could not be trained: the message above says why")
        (run,) = list_runs(f"{place}/results")
    return {
        "data": run.dataset, "img_size": run.recipe["img_size"], "model": model, "peak_bytes": 1024 * usage.ru_maxrss
    }  # fmt: skip


def measure_memory() -> None:
    """Of every set, at 32 pixels and in its own size."""
    machine, runs = environment(choose_device("cpu")), []
    for name, img_size, model in itertools.product(SETS, (32, None), WEIGHED):
        runs.append(train_once(model, PACKED / f"{name}.npz", img_size))
        print(runs[-1], flush=True)
    write_json(RESULTS / MEMORY, {"environment": machine, "runs": runs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "choose", "measure", "memory"))
    parser.add_argument("sets", nargs="?", type=Path, help="for pack: the folder of tools.picture_sets")
    parser.add_argument("--seeds", type=int, default=3, help="for measure")
    parser.add_argument("--img-size", type=int, help="default: as `mspcaps train` takes the pictures")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--device")
    parser.add_argument("--only", choices=SETS, help="one set alone")
    args = parser.parse_args()
    if args.what == "pack":
        if args.sets is None:
            parser.error("name the folder of tools.picture_sets")
        pack(args.sets)
        return
    if args.what == "memory":
        measure_memory()
        return
    recipes = choice(args.img_size) if args.what == "choose" else measured(args.seeds, args.img_size)
    selected = [recipe for recipe in recipes if args.only in (None, recipe.dataset)]
    outcomes = run_sweep(selected, choose_device(args.device), args.seconds, RUNS, RESULTS)
    print(Counter(outcome.state for outcome in outcomes))


if __name__ == "__main__":
    main()
