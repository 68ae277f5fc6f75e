"""The ledger: one JSON per finished run, written once, never edited by hand.

results/runs/<dataset>/<model>/<recipe>-seed<k>.json      the run that counts
results/repeats/<dataset>/<model>/<recipe>-seed<k>.json   the same run, made again
"""

import json
import math
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.files import write_json
from mspcaps.training.images import count_custom_images
from mspcaps.training.recipe import Recipe, stored_recipe

RUNS, REPEATS = "runs", "repeats"
_REQUIRED = {  # of an entry, and of the tables inside it
    "": ("model", "params", "dataset", "recipe", "seed", "accuracy", "curve", "seconds", "device"),
    "recipe": ("name", "epochs"),
    "accuracy": ("last", "best", "best_epoch"),
    "curve": ("loss", "accuracy"),
    "seconds": ("train",),
}


@dataclass(frozen=True)
class Accuracy:
    """Percent after the last epoch and after the best one, and which epoch that was: the best on the validation images
    if the recipe has any, else on the images that are measured on."""

    last: float
    best: float
    best_epoch: int


@dataclass(frozen=True)
class Seconds:
    """Training time including evaluation; `side_by_side` runs shared the device meanwhile."""

    train: float
    per_epoch: float = 0.0
    side_by_side: int = 1


@dataclass(frozen=True)
class Run:
    """One entry of the ledger. What an older entry does not say has the value of the default."""

    model: str
    params: int
    dataset: str
    recipe: dict[str, Any] = field(repr=False)  # resolved and whole
    seed: int
    epochs: int
    accuracy: Accuracy
    curve: dict[str, Any] = field(repr=False)  # loss and accuracy of every epoch; health of every routing block
    seconds: Seconds
    device: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model's family
    provenance: str = ""  # of the images
    images: int | None = None  # that it was trained on
    initial: dict[str, str] | None = None  # with `init`: sha256 of the file, and what was taken over
    measured_on: str = "test"
    processes: int = 1
    precision: str = ""
    engine: str = ""
    software: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    weights_sha256: str = ""
    renamed_from: str | None = None  # if the name of the run has changed since, because a default changed

    @property
    def name(self) -> str:
        """What this way of training is called: `paper`, `paper+epochs=90`."""
        return str(self.recipe["name"])

    @property
    def path(self) -> Path:
        """Where its entry lies below runs/ or repeats/."""
        return Path(self.dataset, self.model, f"{self.name}-seed{self.seed}.json")


def entry_path(results: Path, recipe: Recipe, kind: str = RUNS) -> Path:
    """Of a run, or of its repeat."""
    return results / kind / recipe.dataset / recipe.model / f"{recipe.run_name}.json"


def write_run(path: Path, run: Run) -> None:
    entry = asdict(run)
    write_json(path, {key: value for key, value in entry.items() if key != "renamed_from" or value})


def list_runs(results: str | Path, kind: str = RUNS) -> list[Run]:
    """Every run of the ledger, or every repeat: by data set in the order of the catalog, then model, name and seed."""
    folder = Path(results, kind)
    if not folder.is_dir() and kind == RUNS:
        raise MspcapsError(f"there is no ledger folder {folder}: `mspcaps train` creates one; --results names another")
    order = {name: place for place, name in enumerate(CATALOG)}
    runs = [read_run(path) for path in folder.glob("*/*/*.json")]
    return sorted(runs, key=lambda r: (order.get(r.dataset, len(order)), r.dataset, r.model, r.name, r.seed))


def read_run(path: str | Path) -> Run:
    """One entry, checked: a figure that was moved or changed by hand contradicts the rest of its file."""
    path = Path(path)
    entry = _read_entry(path)
    accuracy, curve, recipe = Accuracy(**entry["accuracy"]), entry["curve"], stored_recipe(entry["recipe"])
    known = {key: value for key, value in entry.items() if key in Run.__dataclass_fields__}
    known |= {"accuracy": accuracy, "seconds": Seconds(**entry["seconds"]), "recipe": recipe}
    run = Run(**{"epochs": recipe["epochs"], "options": recipe["options"]} | known)
    if path.parts[-3:] != run.path.parts:
        raise MspcapsError(f"{path} describes another run: by its content it should be {path.parents[2] / run.path}")
    whole = len(curve["accuracy"]) == len(curve["loss"]) == recipe["epochs"]
    if not whole or not (
        math.isclose(accuracy.last, curve["accuracy"][-1], abs_tol=1e-3)
        and math.isclose(accuracy.best, _best_of(curve), abs_tol=1e-3)
    ):
        raise MspcapsError(f"{path} was changed: its accuracy does not match its curve of {recipe['epochs']} epochs")
    return run


def _best_of(curve: dict[str, Any]) -> float:
    """The accuracy of the best epoch."""
    if "validation" not in curve:
        return max(curve["accuracy"])
    return float(curve["accuracy"][curve["validation"].index(max(curve["validation"]))])


def _read_entry(path: Path) -> dict[str, Any]:
    """With every table and key that an entry must have."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MspcapsError(f"{path} is not a ledger entry: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), dict):
        raise MspcapsError(f"{path} is not a ledger entry: it has no recipe")
    for part, keys in _REQUIRED.items():
        table = entry.get(part) if part else entry
        for key in keys:
            if not isinstance(table, dict) or key not in table:
                missing = f"{part}.{key}" if part else key
                raise MspcapsError(f"{path} is not a complete ledger entry: {missing} is missing")
    check_numbers(entry, path)
    return entry


def check_numbers(entry: dict[str, Any], path: Path) -> None:
    """Refuses text where reports calculate."""
    curves = {f"curve.{name}": entry["curve"].get(name, []) for name in ("loss", "accuracy", "validation")}
    tables = {part: entry[part] for part in ("accuracy", "seconds")}
    single = {f"{part}.{key}": [value] for part, table in tables.items() for key, value in table.items()}
    single |= {key: [entry[key]] for key in ("params", "seed")} | {"recipe.epochs": [entry["recipe"]["epochs"]]}
    for name, values in (curves | single).items():
        if not isinstance(values, list):
            raise MspcapsError(f"{path} is not a ledger entry: {name} is {values!r:.40}, but must be a list of numbers")
        if odd := [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]:
            raise MspcapsError(f"{path} is not a ledger entry: {name} has {odd[0]!r:.40}, which is not a number")


def find_run(results: Path, recipe: Recipe, kind: str = RUNS, overwrite: bool = False) -> Run | None:
    """The finished run of a recipe, or None: the one place that says whether a run is done.

    An entry of its name that tells of another recipe is refused: it is neither the run nor to be overwritten. So is one
    of another number of training images, unless it will be overwritten.
    """
    path = entry_path(results, recipe, kind)
    if not path.is_file():
        return None
    run, recipe = read_run(path), recipe.resolve()
    left_open = {key for key in ("img_size", "augment") if getattr(recipe, key) is None}  # to one's own images
    if differing := [key for key in recipe.differences(run.recipe) if key not in left_open]:
        raise MspcapsError(
            f"{path} is of a run with another {differing[0]}: remove it, or give the new run another name"
        )
    images = None if overwrite or run.images is None else count_custom_images(recipe)
    if images is not None and images != run.images:
        raise MspcapsError(
            f"the data has changed since {path} was written, from {run.images:,} training images to {images:,}: train "
            "with --overwrite to replace it, or give the new run another name"
        )
    return run


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


def software() -> dict[str, str]:
    from mspcaps import __version__

    versions = {"mspcaps": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def git_commit() -> str | None:
    """Of the package, marked "-dirty" if files of it were changed since; MSPCAPS_COMMIT says it where the tree came
    without its history."""
    if commit := os.environ.get("MSPCAPS_COMMIT"):
        return commit

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # installed into somebody's project it is not of their commit
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
