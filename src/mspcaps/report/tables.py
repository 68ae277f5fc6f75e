"""The tables of the paper with our runs beside its figures, in words; markdown.py and results_page.py dress them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from mspcaps.data.catalog import CATALOG, facts
from mspcaps.models import summarize
from mspcaps.report import paper
from mspcaps.report.difference import CONFIDENCE, Difference
from mspcaps.report.paper import Figure, PaperTable
from mspcaps.report.runs import Group, Run, Spread, group_of, grouped, recipe_of
from mspcaps.training.recipe import list_recipes, load_recipe

GENERATED = "<!-- Written by `mspcaps report` from the ledger in results/. Do not edit: a test compares the two. -->"
NOT_TRAINED = "not trained yet"
NEAR = 0.5  # points
FIRST = "paper+initial_scale=positions0.02"  # how the first runs of 300 epochs are called today
NONE = "–"
INTERVAL = f"{100 * CONFIDENCE:.0f} % CI"  # of a mean difference
PREDICTION = f"{100 * CONFIDENCE:.0f} % prediction interval"
HISTORY = "History of these runs"
HISTORY_ANCHOR = "-".join(HISTORY.lower().split())
HEADS = ("paper", "ours, last epoch", "ours, best epoch", "best − paper", "parameters", "training", "command")


@dataclass(frozen=True)
class Row:
    """One row: what the paper says and what our runs of the same recipe reached."""

    setting: tuple[str, ...]
    model: str
    dataset: str
    figure: Figure | None
    group: Group | None
    command: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of HEADS."""
        printed = f"{self.figure.accuracy:.2f}" if self.figure else NONE
        if self.group is None:
            ours: tuple[str, ...] = (NOT_TRAINED, NONE, NONE)
        else:
            ours = (
                with_n(self.group.last),
                spread(self.group.best),
                signed(self.gap, 2) if self.gap is not None else NONE,
            )
        return (printed, *ours, self.parameters, training(self.group), self.command)

    @property
    def gap(self) -> float | None:
        """Our best epoch, mean over the seeds, less the paper's figure, as the two are printed."""
        if self.group is None or self.figure is None:
            return None
        return round(round(self.group.best.mean, 2) - self.figure.accuracy, 2)

    @property
    def further(self) -> Difference | None:
        """The same, beside what one more run of ours would give: the paper's figure is taken to spread like them."""
        if self.group is None or self.figure is None:
            return None
        return Difference.of(self.group.best, Spread(self.figure.accuracy, None, 1))

    @property
    def parameters(self) -> str:
        return f"{self.group.first.params if self.group else count_parameters(self.model, self.dataset):,}"


@dataclass(frozen=True)
class Table:
    """A table of the paper, or of runs that the paper has no row for (then `source` is None)."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    source: PaperTable | None = None

    @property
    def provenances(self) -> list[str]:
        """Where the data of its runs came from, as the runs noted it."""
        return sorted({row.group.provenance for row in self.rows if row.group})


@dataclass(frozen=True)
class Report:
    """All that is told."""

    runs: tuple[Run, ...]
    again: tuple[Run, ...]  # made a second time; nothing else below is about these
    main: tuple[Table, ...]
    ablations: tuple[Table, ...]
    beyond: tuple[Table, ...]  # what the paper has no row for

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
        """How many of these lie within half a point of the paper, above that and below, best epochs on average."""
        gaps = [row.gap for row in self.trained if row.gap is not None]
        above, below = sum(gap > NEAR for gap in gaps), sum(gap < -NEAR for gap in gaps)
        return len(gaps) - above - below, above, below


def build(runs: Sequence[Run], again: Sequence[Run] = ()) -> Report:
    groups = grouped([run for run in runs if not run.recipe["held_out"]])
    main = tuple(main_table(table, groups) for table in paper.MAIN)
    ablations = tuple(
        Table(
            table.title, table.heads, tuple(row_of(f.setting, f.model, f.dataset, groups) for f in table.figures), table
        )
        for table in paper.ABLATIONS
    )
    claimed = {id(row.group) for table in main + ablations for row in table.rows}
    further = [group for group in groups if id(group) not in claimed]
    trials = grouped([run for run in runs if run.recipe["held_out"]])
    beyond = {"Runs beyond the paper's tables": further, "Trials, measured on held-out training images": trials}
    heads = ("model", "data", "recipe")
    return Report(
        tuple(runs), tuple(again), main, ablations,
        tuple(Table(title, heads, tuple(map(further_row, found))) for title, found in beyond.items() if found),
    )  # fmt: skip


def main_table(table: PaperTable, groups: Sequence[Group]) -> Table:
    """One row per data set of the paper, then those that the paper left out but that have a recipe."""
    model = table.figures[0].model
    extra = [name for name in CATALOG if name not in table.datasets and f"paper/{name}/{model}" in list_recipes()]
    rows = tuple(row_of((facts(name).title,), model, name, groups) for name in [*table.datasets, *extra])
    return Table(table.title, ("data",), rows, table)


def row_of(setting: tuple[str, ...], model: str, dataset: str, groups: Sequence[Group]) -> Row:
    name = f"paper/{dataset}/{model}"
    group = group_of(load_recipe(name), groups)
    return Row(setting, model, dataset, paper.figure_of(model, dataset), group, f"mspcaps train {name}")


def further_row(group: Group) -> Row:
    run, name = group.first, recipe_of(group.first)
    title = CATALOG[run.dataset].title if run.dataset in CATALOG else run.dataset
    command = f"mspcaps train {name}" if name else ""
    return Row((run.model, title, run.name), run.model, run.dataset, None, group, command)


@cache
def count_parameters(model: str, dataset: str) -> int:
    known = facts(dataset)
    return summarize(model, len(known.classes), known.channels, known.img_size).params


def spread(value: Spread) -> str:
    return f"{value.mean:.2f}" + (f" ± {value.deviation:.2f}" if value.deviation is not None else "")


def with_n(value: Spread) -> str:
    return f"{spread(value)} (n = {value.n})"


def signed(value: float, digits: int) -> str:
    """+0.10, −0.10, 0.00: with a real minus, and no sign on a zero."""
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def between(difference: Difference) -> str:
    """Its interval; nothing where there is none."""
    if difference.margin is None:
        return ""
    ends = (difference.gap - difference.margin, difference.gap + difference.margin)
    return " to ".join(signed(end, 2) for end in ends)


def in_brackets(difference: Difference) -> str:
    """Its interval within a sentence, with what it rests on."""
    if difference.margin is None:
        return ""
    rests = ", assuming the single run has the spread of the others" if difference.borrowed else ""
    return f" ({INTERVAL} {between(difference)}{rests})"


def training(group: Group | None) -> str:
    """Of runs that had the device for themselves, if there are any: the others took longer than they would have."""
    if group is None:
        return NONE
    alone = [run.seconds for run in group.runs if not run.shared]
    if alone:
        return f"{fmean(alone):,.0f} s, {group.devices}"
    return f"{group.seconds:,.0f} s, {group.devices}, shared"


def comparison(table: Table) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """The paper's own layout, networks against data sets: heads, and rows with what kind each is, also as a cell."""
    source = table.source
    assert source is not None
    heads = ("network", "source", "parameters", *(facts(name).title for name in source.datasets))
    rows = [
        ("quoted", (b.network, "quoted", b.params, *(b.accuracy[name].replace("-", NONE) for name in source.datasets)))
        for b in source.baselines
    ]
    name, printed = paper.TITLES[source.figures[0].model], {f.dataset: f for f in source.figures}
    cells = [f"{printed[dataset].accuracy:.2f}" for dataset in source.datasets]
    rows.append(("quoted", (name, "quoted", source.figures[0].params, *cells)))
    ours = {row.dataset: row for row in table.rows}
    for which in ("best", "last"):
        values = [spread(getattr(g, which)) if (g := ours[d].group) else NOT_TRAINED for d in source.datasets]
        rows.append(("ours", (name, f"ours, {which} epoch", ours["cifar10"].parameters, *values)))
    return heads, rows


AFTER = ", after our first runs had fallen short on its test images"
BEFORE = (
    "The 300-epoch `positions0.02` runs with seeds 0 and 1 on CIFAR-10 and FashionMNIST drew their initial weights "
    "from the random number sequence of a run trained alongside: just as random, but not the weights of their seed.",
    "Seeds 0, 2 and 3 of the CIFAR-10 trials of the unchanged recipe also predate the change. They were trained with "
    "50 times the initial positions of that time: nearly N(0, 1), but not the values that their seed gives today. Seed "
    "1 of that time was exposed to a bug in the training engine and left out; the one listed was trained later.",
    "The trials listed with commit 72d06fb ran on the code that became c681256.",
    "Entries that were renamed record their old name.",
)


def history(report: Report) -> list[str]:
    """What became of the first runs, and what was changed after them; nothing in a ledger that does not have them."""
    if not any("positions0.02" in run.name for run in report.runs):
        return []
    rows = [row for table in report.beyond for row in table.rows if row.dataset == "cifar10"]
    first = next((row.group for row in rows if row.group and row.setting[-1] == FIRST), None)
    told = "Runs named `positions0.02` were made before positions started from N(0, 1)."
    if first and (figure := paper.figure_of(first.first.model, "cifar10")):
        told += (
            f" They came first. On the test images of CIFAR-10 their best epochs reached {spread(first.best)}; the "
            f"paper has {figure.accuracy:.2f}. Other initial scales were then tried on held-out images (see the "
            "alternatives above), and of these the one with the best mean was adopted. Smaller convolutions were tried "
            "later and not adopted."
        )
    return [told, *BEFORE]


def notes(report: Report) -> list[str]:
    """What one must know to read the figures, in Markdown; the first two are about every figure of ours."""
    after = f"{AFTER} ([history](#{HISTORY_ANCHOR}))" if history(report) else ""
    return [
        "**Accuracy** is the percentage of the whole test set that is classified correctly. Ours is that of the last "
        "epoch, mean ± standard deviation over n seeds; we chose no epoch and no seed on test data.",
        "**Choices left open.** The paper does not state over which capsules its softmax runs, nor the initial scale "
        "of vote weights and positions. The first two were chosen by others on test accuracies, the third, N(0, 1), by "
        f"us on held-out training images of CIFAR-10{after}.",
        "**Best epoch.** The paper reports the best epoch on the test set, which is optimistic. We give our best epoch "
        "for comparison; “best − paper” is the difference between the two. The paper states no spread and no number of "
        "runs.",
        f"**Sampling error.** A test set is a sample. {binomial(report)}. Smaller differences may not hold on another "
        "sample.",
        "**Parameters** are counted from the model. **Training** is the wall time of one run including its "
        "evaluations, averaged over the seeds that had the GPU to themselves; “shared” means that all ran side by side "
        "with other runs, which takes longer.",
        "**Commands** train seed 0; add `--seed 1` or `--seed 2` for the others. On a GPU a seed does not determine "
        "the result: sums are added in varying order, and runs of one seed differ about as much as runs of two seeds.",
        "**Not included yet:** the paper's comparison under attack (its figure with FGSM and BIM), its baselines, and "
        "a plain ResNet of similar size trained with the same recipe, which has only been timed.",
    ]


def binomial(report: Report) -> str:
    """The standard error of an accuracy as an estimate for all images of the kind, per data set."""
    said = []
    for name in ("mnist", "fashionmnist", "svhn", "cifar10"):
        rows = [row for table in report.main for row in table.rows if row.dataset == name]
        reached = [row.group.last.mean for row in rows if row.group] or [
            row.figure.accuracy for row in rows if row.figure
        ]
        lowest, n = min(reached), facts(name).test  # the lowest has the largest error
        error = math.sqrt(lowest * (100 - lowest) / n)
        said.append(f"±{error:.2f} points for {facts(name).title} ({n:,} images, {lowest:.1f} %)")
    return "The binomial standard error of an accuracy is " + ", ".join(said)


def quoted_notes(table: Table) -> list[str]:
    assert table.source is not None
    daggers = [paper.DAGGER] if any("†" in baseline.network for baseline in table.source.baselines) else []
    return [
        "“Quoted” figures are those the paper prints, not trained here; its own accuracies are best epochs.",
        paper.ASTERISK,
        *daggers,
        table.source.clash,
    ]
