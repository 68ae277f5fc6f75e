"""Do capsules generalise to other poses and to changed images better than a linear head on the same backbone?

Two tasks that test on poses that training does not show, from the ledger, and the accuracy on changed images, from
results/robustness/. Every network is compared with MSPCaps-T, seed by seed.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspcaps.data import pose
from mspcaps.data.catalog import CATALOG
from mspcaps.evaluation.shift_results import ShiftResult, list_shifts, shift_chart
from mspcaps.evaluation.shifts import CHANGES
from mspcaps.pages import markdown_table
from mspcaps.report.runs import Group, machines, settings
from mspcaps.training.recipe import list_recipes, load_recipe
from reproduction.significance import Difference, holm, paired, signed
from reproduction.study_tables import NONE, with_n
from reproduction.tables import Report, data_title, recipe_settings

TASKS = ("mnist40", "dsprites_pose")
FIRST = "mspcaps_t"
TWINS = {
    "mspcaps_t_linear": "the linear head with cross-entropy",
    "mspcaps_t_linear_margin": "the linear head with the margin loss",
}
NETWORKS = {
    FIRST: "MSPCaps-T",
    "mspcaps_t_linear": "T's backbone, linear head, cross-entropy",
    "mspcaps_t_linear_margin": "T's backbone, linear head, margin loss",
    "mspcaps_l": "MSPCaps-L",
    "capsnet": "CapsNet",
    "efficient_capsnet": "Efficient-CapsNet",
    "resnet20": "ResNet-20",
    "resnet18": "ResNet-18",
}
POSE = ("rotation", "shift", "scale", "shear")
HELD_OUT = 5_000  # training images on which the sweep measures the accuracy on known poses


@dataclass(frozen=True)
class Pair:
    """MSPCaps-T minus another network, over the seeds that both have."""

    other: str
    where: str
    difference: Difference
    seeds: int

    @classmethod
    def of(cls, other: str, where: str, ours: Mapping[int, float], theirs: Mapping[int, float]) -> "Pair | None":
        """By the accuracies of every seed; None without a common seed."""
        difference = paired(ours, theirs)
        return cls(other, where, difference, len(ours.keys() & theirs.keys())) if difference else None

    @property
    def words(self) -> str:
        return f"{TWINS.get(self.other, self.other)} on {self.where} (n = {self.seeds})"

    @property
    def cell(self) -> str:
        """+0.10 (−0.05 to +0.25, n = 5)"""
        interval = f"{self.difference.interval}, " if self.difference.interval else ""
        return f"{signed(self.difference.gap)} ({interval}n = {self.seeds})"


@dataclass(frozen=True)
class Task:
    """One of the two tasks: the runs of every network."""

    name: str
    groups: Mapping[str, Group]
    known: Mapping[str, Group]  # measured on the poses of the training images

    @property
    def title(self) -> str:
        return CATALOG[self.name].title

    @property
    def machines(self) -> list[str]:
        """What the runs of the table were trained on."""
        return machines(run for group in (*self.groups.values(), *self.known.values()) for run in group.runs)

    @property
    def pairs(self) -> list[Pair]:
        pairs, ours = list[Pair | None](), self.groups.get(FIRST)
        for model, group in self.groups.items():
            if model != FIRST and ours:
                pairs.append(Pair.of(model, self.title, ours.by_seed("last"), group.by_seed("last")))
        return [pair for pair in pairs if pair]

    @property
    def table(self) -> str:
        pairs, rows = {pair.other: pair for pair in self.pairs}, []
        for model, group in self.groups.items():
            known = self.known.get(model)
            rows.append((
                NETWORKS[model], f"{group.first.params:,}", f"{known.last}" if known else NONE,
                with_n(group.last), pairs[model].cell if model in pairs else NONE,
                group.training_time,
            ))  # fmt: skip
        heads = ("network", "parameters", "known poses", "other poses", "T − it (95 % CI)", "training")
        return markdown_table(heads, rows, range(1, 5))


def read_tasks(report: Report) -> list[Task]:
    """Those that have runs."""
    tasks = []
    for name in TASKS:
        groups, known = {}, {}
        for model in NETWORKS:
            recipe = f"pose/{name}/{model}"
            if recipe not in list_recipes():
                continue
            if group := report.group_of(recipe):
                groups[model] = group
            held_out = {**recipe_settings(recipe), "held_out": HELD_OUT, "name": f"pose+held_out={HELD_OUT}"}
            if trial := next((g for g in report.trials if settings(g.first.recipe) == held_out), None):
                known[model] = trial
        if groups:
            tasks.append(Task(name, groups, known))
    return tasks


@dataclass(frozen=True)
class Shifted:
    """The accuracy of all networks measured on changed images of one data set."""

    dataset: str
    results: Sequence[ShiftResult]

    @property
    def title(self) -> str:
        return data_title(self.dataset)

    @property
    def networks(self) -> dict[tuple[str, str], list[ShiftResult]]:
        """By model and recipe, in the order of NETWORKS."""
        known, networks = [*NETWORKS], dict[tuple[str, str], list[ShiftResult]]()

        def order(result: ShiftResult) -> tuple[int, str, str]:
            place = known.index(result.model) if result.model in known else len(known)
            return place, result.model, result.recipe

        for result in sorted(self.results, key=order):
            networks.setdefault((result.model, result.recipe), []).append(result)
        return networks

    def values(self, model: str, recipe: str, lost: bool = False) -> dict[int, float]:
        """Of every seed the mean accuracy over the changes of pose, or with `lost` the points lost to them."""
        by_seed = {}
        for result in self.networks.get((model, recipe), ()):
            mean = statistics.fmean(result.evaluation.means[change] for change in POSE)
            by_seed[result.seed or 0] = result.evaluation.clean - mean if lost else mean
        return by_seed

    def pairs(self, lost: bool = False) -> dict[tuple[str, str], Pair]:
        """With MSPCaps-T by the same recipe."""
        pairs = {}
        for model, recipe in self.networks:
            where = self.title + (f" by `{recipe}`" if recipe else "")
            pair = Pair.of(model, where, self.values(FIRST, recipe, lost), self.values(model, recipe, lost))
            if model != FIRST and pair:
                pairs[model, recipe] = pair
        return pairs

    @property
    def table(self) -> str:
        poses, lost, rows = self.pairs(), self.pairs(lost=True), []
        for (model, recipe), results in self.networks.items():
            evaluations = [result.evaluation for result in results]
            means = [statistics.fmean(one.means[change] for one in evaluations) for change in CHANGES]
            overall = (statistics.fmean(one.clean for one in evaluations), *means, statistics.fmean(means))
            pairs = [pairs[model, recipe].cell if (model, recipe) in pairs else NONE for pairs in (poses, lost)]
            name = f"{NETWORKS.get(model, model)}, `{recipe}`" if recipe else NETWORKS.get(model, model)
            rows.append((name, str(len(results)), *(f"{value:.1f}" for value in overall), *pairs))
        heads = ("network, recipe", "n", "none", *CHANGES, "mean", "T − it, pose", "T − it, lost by pose")
        return markdown_table(heads, rows, range(1, len(heads)))

    @property
    def chart(self) -> str:
        ordered = [result for results in self.networks.values() for result in results]
        return shift_chart(ordered, f"Accuracy on changed images of {self.title} against the strength of the change")


def read_shifted(results: Path) -> list[Shifted]:
    """By data set, in the order of the catalog; without measurements on only some of the images."""
    sets: dict[str, list[ShiftResult]] = {}
    for result in list_shifts(results):
        if not result.part:
            sets.setdefault(result.dataset, []).append(result)
    order = [*CATALOG, *sorted(sets.keys() - CATALOG.keys())]
    return [Shifted(name, sets[name]) for name in order if name in sets]


def verdict(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """The outcome of the comparisons with a linear head, after Holm's correction for all that have an interval; the
    others are open."""
    judged = [pair for pair in pairs if pair.difference.p_value is not None]
    significant = holm([pair.difference.p_value for pair in judged if pair.difference.p_value is not None])
    outcomes: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    outcomes["open"] = [pair.words for pair in pairs if pair not in judged]
    for pair, clear in zip(judged, significant, strict=True):
        outcomes["undecided" if not clear else "better" if pair.difference.gap > 0 else "worse"].append(pair.words)
    return outcomes


def pose_values(report: Report, results: Path) -> dict[str, Any]:
    """What templates/shifts.md.j2 is filled with."""
    tasks, shifted = read_tasks(report), read_shifted(results)
    twins = [pair for task in tasks for pair in task.pairs if pair.other in TWINS]
    changed = [pair for one in shifted for (model, _), pair in one.pairs().items() if model in TWINS]
    return {
        "tasks": tasks, "shifted": shifted, "pose_verdict": verdict(twins), "shift_verdict": verdict(changed),
        "poses": pose, "splits": pose.SPLITS, "epochs": load_recipe(f"pose/{TASKS[0]}/{FIRST}").epochs,
        "changes": CHANGES,
        "tasks_missing": [CATALOG[name].title for name in TASKS if name not in {task.name for task in tasks}],
    }  # fmt: skip
