"""The ledger, read for people: runs, runs that differ in nothing but the seed, and what they reached together."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mspcaps.training import ledger
from mspcaps.training.ledger import REPEATS, list_runs
from mspcaps.training.recipe import Recipe, list_recipes, load_recipe


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
    """Every entry of the ledger, in the order of the tables."""
    return [converted(run) for run in list_runs(folder)]


def read_again(folder: Path) -> list[Run]:
    """Runs of the ledger that were made a second time: the first is what counts."""
    return [converted(run) for run in list_runs(folder, REPEATS)]


def converted(run: ledger.Run) -> Run:
    return Run(
        model=run.model, dataset=run.dataset, seed=run.seed, params=run.params, last=run.accuracy.last,
        best=run.accuracy.best, best_epoch=run.accuracy.best_epoch, seconds=run.seconds.train,
        shared=run.seconds.side_by_side > 1, device=run.device, form=run.engine, precision=run.precision,
        provenance=run.provenance, commit=run.commit or "", sha256=run.weights_sha256, losses=run.curve["loss"],
        accuracies=run.curve["accuracy"], recipe={key: run.recipe[key] for key in run.recipe if key != "seed"},
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
    values = recipe.resolve().to_dict()
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
