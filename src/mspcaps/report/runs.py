"""The ledger in groups: runs that differ only in seed or fold, and their mean and deviation."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mspcaps.training.ledger import REPEATS, Run, list_runs


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of n values; one value has no deviation."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        """88.40 ± 0.26"""
        return f"{self.mean:.2f}" + (f" ± {self.deviation:.2f}" if self.deviation is not None else "")


@dataclass(frozen=True)
class Group:
    """Runs of one model, data set and recipe. Repeats of a seed are averaged with it, so n counts seeds; in a
    cross-validation all runs of a fold are averaged, so n counts folds."""

    runs: tuple[Run, ...]  # at least one
    repeats: tuple[Run, ...] = ()

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def folds(self) -> int:
        """Number of folds of a cross-validation; else 0."""
        return int(self.first.recipe["folds"])

    @property
    def n(self) -> str:
        """3 (seeds), or 5 folds, or 4 of 5 folds."""
        n = self.last.n
        if not self.folds:
            return f"{n}"
        return f"{n} folds" if n == self.folds else f"{n} of {self.folds} folds"

    def by_seed(self, which: str) -> dict[int, float]:
        """Accuracy by seed, or by fold, after the "last" or the "best" epoch."""
        values: dict[int, list[float]] = {}
        for run in self.runs + self.repeats:
            key = run.recipe["fold"] if self.folds else run.seed
            values.setdefault(key, []).append(getattr(run.accuracy, which))
        return {key: statistics.fmean(accuracies) for key, accuracies in values.items()}

    def seeds(self, which: str) -> list[float]:
        return list(self.by_seed(which).values())

    @cached_property
    def last(self) -> Spread:
        return Spread.of(self.seeds("last"))

    @cached_property
    def best(self) -> Spread:
        return Spread.of(self.seeds("best"))

    @cached_property
    def alone(self) -> tuple[Run, ...]:
        """Runs that had the device to themselves."""
        return tuple(run for run in self.runs if run.seconds.side_by_side == 1)

    @property
    def gpu_seconds(self) -> float:
        """Mean time of one run; if all runs shared a device, their share of it."""
        return statistics.fmean(run.seconds.train / run.seconds.side_by_side for run in self.alone or self.runs)

    @property
    def training_time(self) -> str:
        """Mean time of one run on every machine, over those that had it to themselves if there are any."""
        times = []
        for name in machines(self.runs):
            group = Group(tuple(run for run in self.runs if machine(run) == name))
            seconds = statistics.fmean(run.seconds.train for run in group.alone or group.runs)
            times.append(f"{seconds:,.0f} s, {name}{'' if group.alone else ', shared'}")
        return "; ".join(times)


def machine(run: Run) -> str:
    """NVIDIA H200, bf16"""
    return ", ".join(filter(None, (run.device, run.precision)))


def machines(runs: Iterable[Run]) -> list[str]:
    """What they were trained on: runs of one recipe form one group whatever that was."""
    return sorted(set(map(machine, runs)))


def read_groups(results: Path) -> list[Group]:
    """All runs of a ledger, by data set, model and recipe."""
    return group_runs(list_runs(results), list_runs(results, REPEATS))


def group_runs(runs: Sequence[Run], repeats: Sequence[Run] = ()) -> list[Group]:
    """Group runs whose recipes are equal but for seed and fold, with the repeats of these runs. Repeats without a run
    count as runs."""
    members: list[list[Run]] = []
    for run in runs:
        group = next((group for group in members if same_training(group[0], run)), [])
        if not group:
            members.append(group)
        group.append(run)
    groups = [Group(tuple(group), tuple(r for r in repeats if same_training(group[0], r))) for group in members]
    orphans = [r for r in repeats if not any(same_training(group[0], r) for group in members)]
    return groups + (group_runs(orphans) if orphans else [])


def same_training(run: Run, other: Run) -> bool:
    """Whether two runs differ only in seed, fold and machine."""
    return (run.model, run.dataset, settings(run.recipe)) == (other.model, other.dataset, settings(other.recipe))


def settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a recipe sets, without seed and fold; an empty field counts as a missing one."""
    rest = {key: value for key, value in recipe.items() if key not in ("seed", "fold")}
    return {key: value for key, value in rest.items() if value not in (None, "", {}, False, 0)}
