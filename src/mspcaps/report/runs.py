"""The ledger, read for people: runs, runs that differ in nothing but the seed, and what they reached together."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mspcaps.data.catalog import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.training.ledger import REPEATS, read_entry
from mspcaps.training.recipe import Recipe, filled, list_recipes, load_recipe, with_defaults

_NEEDED = {  # of an entry, and of the tables inside it
    "": ("model", "params", "dataset", "provenance", "recipe", "seed", "accuracy", "curve", "seconds", "device"),
    "recipe": ("name", "epochs"),
    "accuracy": ("last", "best", "best_epoch"),
    "curve": ("loss", "accuracy"),
    "seconds": ("train",),
}


@dataclass(frozen=True)
class Run:
    """One entry of the ledger."""

    model: str
    dataset: str
    seed: int
    params: int
    last: float  # percent
    best: float
    best_epoch: int
    seconds: float
    shared: bool  # whether other runs were on its device
    device: str
    form: str
    precision: str
    provenance: str
    commit: str
    sha256: str
    losses: Sequence[float]  # per epoch
    accuracies: Sequence[float]
    recipe: dict[str, Any] = field(repr=False)  # whole, without the seed

    @property
    def name(self) -> str:
        """What this way of training is called."""
        return str(self.recipe["name"])


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of n values; one value has no deviation."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Group:
    """Runs of one model, data set and recipe, in the order of their seeds; at least one."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @cached_property
    def last(self) -> Spread:
        return Spread.of([run.last for run in self.runs])

    @cached_property
    def best(self) -> Spread:
        return Spread.of([run.best for run in self.runs])

    @property
    def seconds(self) -> float:
        """Of one run, on average."""
        return statistics.fmean(run.seconds for run in self.runs)

    @property
    def devices(self) -> str:
        return ", ".join(sorted({run.device for run in self.runs}))

    @property
    def provenance(self) -> str:
        return " ".join(sorted({run.provenance for run in self.runs}))


def read_ledger(folder: Path) -> list[Run]:
    """Every entry below the folder, in the order of the tables."""
    if not folder.is_dir():
        raise MspcapsError(f"there is no ledger folder {folder}: `mspcaps train` creates one; --results names another")
    runs = [read_run(path, folder) for path in folder.glob("*/*/*.json")]
    order = {name: place for place, name in enumerate(CATALOG)}
    return sorted(runs, key=lambda r: (order.get(r.dataset, len(order)), r.dataset, r.model, r.name, r.seed))


def read_again(folder: Path) -> list[Run]:
    """Runs of the ledger that were made a second time, in a ledger of their own inside it: the first is what counts."""
    return read_ledger(folder / REPEATS) if (folder / REPEATS).is_dir() else []


def read_run(path: Path, folder: Path) -> Run:
    """One entry, checked: a figure that was moved or changed by hand contradicts the rest of its file."""
    entry = read_entry(path)
    for part, keys in _NEEDED.items():
        table = entry.get(part) if part else entry
        for key in keys:
            if not isinstance(table, dict) or key not in table:
                raise MspcapsError(
                    f"{path} is not a complete ledger entry: {f'{part}.{key}' if part else key} is missing"
                )
    accuracy, curve, recipe = entry["accuracy"], entry["curve"], dict(entry["recipe"])
    expected = Path(entry["dataset"], entry["model"], f"{recipe['name']}-seed{entry['seed']}.json")
    if path.relative_to(folder) != expected:
        raise MspcapsError(f"{path} describes another run: by its content it should be {folder / expected}")
    curve_ends = len(curve["accuracy"]) == len(curve["loss"]) == recipe["epochs"]
    stated = {"last": curve["accuracy"][-1], "best": max(curve["accuracy"])} if curve_ends else {}
    if not stated or any(not math.isclose(accuracy[key], value, abs_tol=1e-3) for key, value in stated.items()):
        raise MspcapsError(f"{path} was changed: its accuracy does not match its curve of {recipe['epochs']} epochs")
    recipe = with_defaults(recipe)
    del recipe["seed"]
    return Run(
        model=entry["model"], dataset=entry["dataset"], seed=entry["seed"], params=entry["params"],
        last=accuracy["last"], best=accuracy["best"], best_epoch=accuracy["best_epoch"],
        seconds=entry["seconds"]["train"], shared=entry["seconds"].get("side_by_side", 1) > 1,
        device=entry["device"], form=entry.get("form") or "", precision=entry.get("precision") or "",
        provenance=entry["provenance"], commit=entry.get("commit") or "", sha256=entry.get("weights_sha256") or "",
        losses=curve["loss"], accuracies=curve["accuracy"], recipe=recipe,
    )  # fmt: skip


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs whose whole recipes are equal but for the seed, together."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if (group[0].model, group[0].dataset, group[0].recipe) == (run.model, run.dataset, run.recipe):
                group.append(run)
                break
        else:
            groups.append([run])
    return [Group(tuple(group)) for group in groups]


def resolved(recipe: Recipe) -> dict[str, Any]:
    """As the ledger has it, without the seed."""
    values = filled(recipe).to_dict()
    values.pop("seed")
    return values


def follows(run: Run, recipe: Recipe) -> bool:
    """Whether a run is one of this recipe, with whatever seed."""
    return run.recipe == resolved(recipe)


def group_of(recipe: Recipe, groups: Sequence[Group]) -> Group | None:
    """The runs of this recipe, if there are any."""
    return next((group for group in groups if follows(group.first, recipe)), None)


def recipe_of(run: Run) -> str | None:
    """The name under recipes/ of the way a run was trained."""
    return next((name for name in list_recipes() if follows(run, load_recipe(name))), None)
