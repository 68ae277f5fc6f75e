"""The paper's tables with our runs beside its figures, and the trials made where a figure is missed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from mspcaps.data.catalog import CATALOG, facts
from mspcaps.models import Summary, summarize
from mspcaps.report.runs import Group, Spread, read_groups, settings
from mspcaps.training.ledger import Run
from mspcaps.training.recipe import list_recipes, load_recipe
from reproduction import paper
from reproduction.claims import CLAIMS
from reproduction.paper import Figure, PaperTable
from reproduction.significance import Difference

NEAR = 0.5  # points
IGNORED = {"name", "epochs", "held_out", "seed"}  # fields in which a trial always differs from its recipe


@dataclass(frozen=True)
class Row:
    """One row: what the paper says and what our runs of the same recipe reached."""

    setting: tuple[str, ...]
    model: str
    dataset: str
    figure: Figure | None
    group: Group | None
    recipe: str | None  # its name under recipes/

    @property
    def title(self) -> str:
        return f"{paper.TITLES.get(self.model, self.model)} on {data_title(self.dataset)}"

    @property
    def gap(self) -> float | None:
        """Our best epoch, mean over the seeds, less the paper's figure, as the two are printed."""
        return gap_to(self.figure.accuracy if self.figure else None, self.group)

    @property
    def last_gap(self) -> float | None:
        """The same after our last epoch."""
        return gap_to(self.figure.accuracy if self.figure else None, self.group, "last")

    @property
    def missed(self) -> bool:
        return self.gap is not None and self.gap < 0

    @property
    def prediction_margin(self) -> float | None:
        """How far one more run may be from our mean, if it spreads like ours."""
        if self.group is None or self.figure is None:
            return None
        return Difference.of(self.group.best, Spread(self.figure.accuracy, None, 1)).margin

    @property
    def params(self) -> int:
        return self.group.first.params if self.group else cost_of(self.model, self.dataset).params

    @property
    def images(self) -> int:
        return facts(self.dataset).test


@dataclass(frozen=True)
class Table:
    """A table of the paper, or of runs that the paper has no row for (then `source` is None)."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    source: PaperTable | None = None


@dataclass(frozen=True)
class Report:
    """The ledger, as the pages need it."""

    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def provenances(self) -> list[str]:
        """Where the images came from, as the runs recorded it; only of the paper's data sets."""
        datasets = {row.dataset for row in self.main_rows}
        return sorted({run.provenance for run in self.runs if run.dataset in datasets})

    @cached_property
    def tested(self) -> list[Group]:
        return [group for group in self.groups if not group.first.recipe["held_out"]]

    @cached_property
    def trials(self) -> list[Group]:
        """Measured on held-out training images: never compared with a figure of the paper."""
        return [group for group in self.groups if group.first.recipe["held_out"]]

    @cached_property
    def main(self) -> list[Table]:
        """One row per data set of the paper, then those that the paper left out but that have a recipe."""
        tables = []
        for source in paper.MAIN:
            model = source.figures[0].model
            extra = [d for d in CATALOG if d not in source.datasets and f"paper/{d}/{model}" in list_recipes()]
            rows = [self.row((data_title(d),), model, d) for d in (*source.datasets, *extra)]
            tables.append(Table(source.title, ("data",), tuple(rows), source))
        return tables

    @property
    def main_rows(self) -> list[Row]:
        return [row for table in self.main for row in table.rows]

    @cached_property
    def ablations(self) -> list[Table]:
        return [
            Table(s.title, s.heads, tuple(self.row(f.setting, f.model, f.dataset) for f in s.figures), s)
            for s in paper.ABLATIONS
        ]

    @cached_property
    def beyond(self) -> list[Table]:
        """What the paper has no row for."""
        ours = {id(row.group) for table in self.main + self.ablations for row in table.rows}
        others = {
            "Runs beyond the tables above": [group for group in self.tested if id(group) not in ours],
            "Trials, measured on held-out training images": self.trials,
        }
        heads = ("model", "data", "recipe")
        return [Table(title, heads, tuple(map(further_row, groups))) for title, groups in others.items() if groups]

    def row(self, setting: tuple[str, ...], model: str, dataset: str) -> Row:
        name = f"paper/{dataset}/{model}"
        return Row(setting, model, dataset, paper.figure_of(model, dataset), self.group_of(name), name)

    def group_of(self, recipe: str) -> Group | None:
        """The runs of a recipe under recipes/, if there are any."""
        return next((group for group in self.tested if settings(group.first.recipe) == recipe_settings(recipe)), None)

    @cached_property
    def compared(self) -> dict[str, Group]:
        """The runs on CIFAR-10 by the paper's recipe that claims are about, by model."""
        groups = {}
        for model in dict.fromkeys(model for claim in CLAIMS for pair in claim.pairs for model in pair):
            name = f"paper/cifar10/{model}"
            if group := self.group_of(name if name in list_recipes() else f"controls/cifar10/{model}"):
                groups[model] = group
        return groups

    @property
    def paper_rows(self) -> list[Row]:
        """Every figure of the paper once: the full models stand in several tables."""
        rows = {(r.model, r.dataset): r for t in self.main + self.ablations for r in t.rows if r.figure}
        return list(rows.values())

    @property
    def trained(self) -> list[Row]:
        """Those of them that have runs of ours."""
        return [row for row in self.paper_rows if row.group]

    @property
    def near_above_below(self) -> tuple[int, int, int]:
        """How many of their best epochs, on average, are within half a point of the paper, further above and below."""
        gaps = [row.gap for row in self.trained if row.gap is not None]
        above, below = sum(gap > NEAR for gap in gaps), sum(gap < -NEAR for gap in gaps)
        return len(gaps) - above - below, above, below

    @property
    def sampling_errors(self) -> list[tuple[str, float, int, float]]:
        """Of every data set: title, standard error of an accuracy in points, test images, and that accuracy, which is
        our lowest and so has the largest error."""
        errors = []
        for name in ("mnist", "fashionmnist", "svhn", "cifar10"):
            rows = [row for row in self.main_rows if row.dataset == name]
            ours = [row.group.last.mean for row in rows if row.group]
            lowest = min(ours or [row.figure.accuracy for row in rows if row.figure])
            errors.append((data_title(name), binomial_error(lowest, facts(name).test), facts(name).test, lowest))
        return errors


@dataclass(frozen=True)
class Trial:
    """A changed recipe and the recipe itself under the same conditions."""

    words: str
    group: Group
    base: Group | None

    @property
    def difference(self) -> Difference | None:
        return Difference.of(self.group.last, self.base.last) if self.base else None

    @property
    def better(self) -> bool:
        return self.difference is not None and self.difference.clear and self.difference.gap > 0


def read_report(results: Path) -> Report:
    return Report(tuple(read_groups(results)))


def trials_of(row: Row, report: Report) -> list[Trial]:
    """Trials to reach a figure of the paper, each with the recipe itself trained as long on as many images. Trials of
    other kinds of recipes, ours or adversarial ones, are on other pages."""
    recipe = recipe_settings(f"paper/{row.dataset}/{row.model}")
    alike = [g for g in report.trials if (g.first.model, g.first.dataset) == (row.model, row.dataset)]
    trials = [(changes(settings(g.first.recipe), recipe), g) for g in alike if g.first.name.startswith("paper")]
    bases = {length(group): group for words, group in trials if not words}
    return [Trial(words, group, bases.get(length(group))) for words, group in trials if words]


def length(group: Group) -> tuple[int, int]:
    return group.first.recipe["epochs"], group.first.recipe["held_out"]


def changes(trial: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """How a trial differs from the recipe, in words; empty for the recipe itself."""
    words = [f"initial {name} × {factor:g}" for name, factor in trial.get("initial_scale", {}).items() if factor != 1]
    for key in {**recipe, **trial}:
        ours, theirs = trial.get(key), recipe.get(key)
        if ours == theirs or key in {*IGNORED, "initial_scale"}:
            continue
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping | None):
            group = "" if key == "options" else f"{key} "
            words += [f"{group}{name} {now}" for name, now in ours.items() if now != (theirs or {}).get(name)]
        else:
            words.append(f"{key} {ours}")
    return ", ".join(words)


def further_row(group: Group) -> Row:
    run = group.first
    recipe = next((name for name in list_recipes() if recipe_settings(name) == settings(run.recipe)), None)
    return Row((run.model, data_title(run.dataset), run.name), run.model, run.dataset, None, group, recipe)


@cache
def recipe_settings(name: str) -> dict[str, Any]:
    """As the ledger has them."""
    return settings(load_recipe(name).resolve().to_dict())


@cache
def cost_of(model: str, dataset: str = "cifar10") -> Summary:
    """At the shape of the data set."""
    data = facts(dataset)
    return summarize(model, len(data.classes), data.channels, data.img_size)


def data_title(dataset: str) -> str:
    return CATALOG[dataset].title if dataset in CATALOG else dataset


def gap_to(figure: float | None, group: Group | None, which: str = "best") -> float | None:
    """Our mean after the "best" or "last" epoch less a figure of the paper, as printed; None if one is missing."""
    return None if figure is None or group is None else round(round(getattr(group, which).mean, 2) - figure, 2)


def binomial_error(accuracy: float, images: int) -> float:
    """The standard error of an accuracy measured on so many images, both in percent."""
    return math.sqrt(accuracy * (100 - accuracy) / images)
