"""The ledger: one JSON per finished run, written once, never edited by hand.

results/runs/<dataset>/<model>/<recipe>[-fold<i>]-seed<k>.json      the run that counts
results/repeats/<dataset>/<model>/<recipe>[-fold<i>]-seed<k>.json   the same run, made again
"""

import math
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from mspcaps.data import CATALOG, fingerprint
from mspcaps.errors import MspcapsError
from mspcaps.files import NUMBER, check_form, read_form, sha256_of, write_json
from mspcaps.models.shipped import weights_path
from mspcaps.training.images import measure_custom_images
from mspcaps.training.recipe import Recipe, measured_on, run_name, stored_recipe

RUNS, REPEATS, ENTRY = "runs", "repeats", "a ledger entry"
_FORM: dict[str, Any] = {
    "model": str, "params": int, "dataset": str, "seed": int, "device": str, "weights_sha256": str,
    "recipe": {"name": str, "epochs": int}, "accuracy": {"last": NUMBER, "best": NUMBER, "best_epoch": int},
    "curve": {"loss": [NUMBER], "accuracy": [NUMBER]}, "seconds": {"train": NUMBER},
}  # fmt: skip
_WHERE_KNOWN: dict[str, Any] = {"images": int, "data_sha256": str, "teacher_sha256": str, "initial": dict}
_HEALTH = {"capsules": int, "entropy": list, "top": list, "starved": list, "swapped": {"*": list}}


@dataclass(frozen=True)
class Accuracy:
    """Percent after the last epoch and after the best one, and which that was: the best on the validation images if
    there were any, else on the images that the run is measured on."""

    last: float
    best: float
    best_epoch: int
    chosen_on: str = "test"  # the images on which that epoch is the best: test, held-out or validation

    def __str__(self) -> str:
        return (
            f"{self.last:.2f} % after the last epoch, {self.best:.2f} % after epoch {self.best_epoch}, the best on the "
            f"{self.chosen_on} images"
        )


@dataclass(frozen=True)
class Seconds:
    """Training time including evaluation; `side_by_side` runs shared the device."""

    train: float
    per_epoch: float = 0.0
    side_by_side: int = 1


@dataclass(frozen=True)
class Run:
    """One entry of the ledger. Fields that an older entry lacks have their default."""

    model: str
    params: int
    dataset: str
    recipe: dict[str, Any] = field(repr=False)  # resolved, with every field
    seed: int
    epochs: int  # how many were run: fewer than the recipe's if its patience ran out
    accuracy: Accuracy
    curve: dict[str, Any] = field(repr=False)  # loss and accuracy of every epoch; health of every routing block;
    # with validation images also their accuracy, under attack if there is an adversary
    seconds: Seconds
    device: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model's family
    provenance: str = ""  # of the images
    images: int | None = None  # how many it was trained on
    data_sha256: str | None = None  # fingerprint of custom images
    initial: dict[str, str] | None = None  # with `init`: sha256 of the file, and which weights were transferred
    teacher_sha256: str | None = None  # of the teacher's weights file
    measured_on: str = "test"
    watched: str = ""  # the images that the curve's accuracies were measured on: test, held-out or validation
    processes: int = 1
    precision: str = ""
    engine: str = ""
    software: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    weights_sha256: str = ""
    renamed_from: str | None = None  # the run's name before a default changed, and its name with it

    @property
    def validated(self) -> bool:
        """Whether the epoch was chosen on validation images: then we report its weights, not the last ones."""
        return "validation" in self.curve

    @property
    def name(self) -> str:
        """The recipe's name: `paper`, `paper+epochs=90`."""
        return str(self.recipe["name"])

    @property
    def path(self) -> Path:
        """The path of its entry below runs/ or repeats/."""
        return Path(self.dataset, self.model, f"{run_name(self.recipe | {'seed': self.seed})}.json")


def entry_path(results: Path, recipe: Recipe, kind: str = RUNS) -> Path:
    """The file of a run, or of its repeat."""
    return results / kind / f"{recipe.run_path}.json"


def measured_images(recipe: Recipe) -> str:
    """The images that a run's accuracy is measured on, in words."""
    if recipe.folds:
        return f"fold {recipe.fold} of {recipe.folds} of the training images"
    return f"{recipe.held_out:,} held-out training images" if recipe.held_out else "test"


def write_run(path: Path, run: Run) -> None:
    entry = asdict(run)
    write_json(path, {key: value for key, value in entry.items() if key != "renamed_from" or value})


def list_runs(results: str | Path, kind: str = RUNS) -> list[Run]:
    """Every run of the ledger, or every repeat: by data set in the order of the catalog, then model, name and seed."""
    folder = Path(results, kind)
    if not folder.is_dir() and kind == RUNS:
        raise MspcapsError(f"there is no ledger folder {folder}: `mspcaps train` creates one; --results names another")
    order = {name: position for position, name in enumerate(CATALOG)}

    def sort_key(run: Run) -> tuple[Any, ...]:
        return order.get(run.dataset, len(order)), run.dataset, run.model, run.name, run.seed, run.recipe["fold"]

    return sorted((read_run(path) for path in folder.glob("*/*/*.json")), key=sort_key)


def read_run(path: str | Path) -> Run:
    """One entry, checked: if a figure was changed or the file was moved, the rest of the entry contradicts it."""
    path = Path(path)
    entry = _read_entry(path)
    curve, recipe = entry["curve"], stored_recipe(entry["recipe"])
    measured = measured_on(recipe)  # older entries do not name the images
    defaults = {"epochs": recipe["epochs"], "options": recipe["options"], "watched": measured}
    chosen_on = "validation" if "validation" in curve else measured
    accuracy = Accuracy(**{"chosen_on": chosen_on} | _fields_of(Accuracy, entry["accuracy"]))
    seconds = Seconds(**_fields_of(Seconds, entry["seconds"]))
    run = Run(**defaults | _fields_of(Run, entry) | {"accuracy": accuracy, "seconds": seconds, "recipe": recipe})
    if path.parts[-3:] != run.path.parts:
        raise MspcapsError(f"{path} describes another run: by its content it should be {path.parents[2] / run.path}")
    if not _fits_curve(run):
        raise MspcapsError(f"{path} was changed: its accuracy does not match its curve of {run.epochs} epochs")
    return run


def _fields_of(kind: type, table: dict[str, Any]) -> dict[str, Any]:
    """The entries of a table that are fields of a dataclass; a newer version may have written more."""
    return {field.name: table[field.name] for field in fields(kind) if field.name in table}


def _fits_curve(run: Run) -> bool:
    """Whether a run's accuracy and number of epochs follow from its curve; with validation images only the best epoch
    does, as the test images were used once, at the end."""
    curve, accuracy = run.curve, run.accuracy
    scores = curve.get("validation", curve["accuracy"])
    if not len(curve["accuracy"]) == len(curve["loss"]) == len(scores) == run.epochs > 0:
        return False
    best, patience = scores.index(max(scores)), run.recipe["patience"]
    if run.epochs != run.recipe["epochs"] and not (patience and run.epochs == best + 1 + patience):
        return False
    if run.watched == "validation":
        return accuracy.best_epoch == best + 1
    return math.isclose(accuracy.last, curve["accuracy"][-1], abs_tol=1e-3) and math.isclose(
        accuracy.best, curve["accuracy"][best], abs_tol=1e-3
    )


def _read_entry(path: Path) -> dict[str, Any]:
    """The content of an entry, which must have every required table and key."""
    entry: dict[str, Any] = read_form(path, _FORM, ENTRY)
    given = {key: form for key, form in _WHERE_KNOWN.items() if entry.get(key) is not None}
    curves = {"validation": [NUMBER], "health": {"*": _HEALTH}}
    check_form(path, entry, given | {"curve": {key: curves[key] for key in curves if key in entry["curve"]}}, ENTRY)
    return entry


def find_run(results: Path, recipe: Recipe, kind: str = RUNS, overwrite: bool = False) -> Run | None:
    """The finished run of a recipe, or None: the one place that decides whether a run is done.

    An entry with the same name but another recipe is refused: it is not this run, and must not be overwritten. So is an
    entry from other images, initial weights or another teacher, unless it is to be overwritten.
    """
    path = entry_path(results, recipe, kind)
    if not path.is_file():
        return None
    run, (images, size) = read_run(path), measure_custom_images(recipe)
    now = {"images": images, "data_sha256": fingerprint(recipe.data), "teacher_sha256": checksum(recipe.teacher)}
    change = changed_input(recipe, vars(run), now | {"initial": checksum(recipe.init)})
    differing = recipe.resolve(size).differences(run.recipe)
    if size is None or change:  # what follows from the images cannot be compared
        left_open = {key for key in ("img_size", "augment") if getattr(recipe.resolve(), key) is None}
        differing = [key for key in differing if key not in left_open]
    if differing:
        raise MspcapsError(
            f"{path} is of a run that differs in {differing[0]}: remove it, or give the new run another name"
        )
    if change and not overwrite:
        raise MspcapsError(
            f"{path} was written when {change}: train with --overwrite to replace it, or give the new run another name"
        )
    return run


def remove_repeat(results: Path, recipe: Recipe, run: Run) -> None:
    """After a run was overwritten, remove its repeat if that was of other images or weights."""
    path = entry_path(results, recipe, REPEATS)
    with suppress(MspcapsError):  # the report will name an entry that cannot be read
        if path.is_file() and changed_input(recipe, vars(read_run(path)), vars(run)):
            path.unlink()


def changed_input(recipe: Recipe, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What a run reads and what has changed, in words; empty if nothing has, or if that cannot be known. Both are as in
    a ledger entry, which says of initial weights more than their checksum."""
    before, after = (side.get("images") or 0 for side in (then, now))
    changes = {
        "images": f"there were {before:,} training images, but now there are {after:,}",
        "data_sha256": f"{recipe.data} held different images, though as many for training",
        "teacher_sha256": f"the teacher {recipe.teacher} had other weights",
        "initial": f"{recipe.init} held other weights",
    }
    for key, words in changes.items():
        values = [side.get(key) for side in (then, now)]
        known = {x.get("sha256") if isinstance(x, dict) else x for x in values if x is not None}
        if len(known) > 1:
            return words
    return ""


def checksum(weights: str) -> str | None:
    """The sha256 of a recipe's teacher or initial weights, if it names any and they are still there."""
    path = weights_path(weights) if weights else None
    return sha256_of(path) if path and path.is_file() else None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.processor() or platform.machine()} GPU"
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


def software() -> dict[str, str]:
    from mspcaps import __version__

    versions = {"mspcaps": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def git_commit() -> str | None:
    """The commit of the package, with "-dirty" if its files have changed since; MSPCAPS_COMMIT names it for a source
    tree without its history."""
    if commit := os.environ.get("MSPCAPS_COMMIT"):
        return commit

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # inside another project's tree, its commit is not ours
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
