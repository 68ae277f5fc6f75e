"""Any ledger as tables and curves: one page with contents, and the tables alone as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mspcaps.data.catalog import CATALOG
from mspcaps.files import format_duration, write_atomically
from mspcaps.pages import markdown_table, render
from mspcaps.report.curves import accuracy_chart, health_charts, loss_chart
from mspcaps.report.runs import Group, machine, machines, read_groups
from mspcaps.training.ledger import Run
from mspcaps.training.recipe import measured_on

PAGE, TABLES = "index.html", "report.md"
HEADS = ("model", "recipe", "measured on", "last epoch", "best epoch", "best on", "n", "parameters", "training")
FIGURES = (3, 4, 6, 7)  # of these columns
RUN_HEADS = (
    "data", "model", "recipe", "seed", "last", "best", "best epoch", "best on", "seconds", "device", "commit",
    "weights",
)  # fmt: skip
RUN_FIGURES = (3, 4, 5, 6, 8)
READING = (
    "Accuracies are percentages of the images that a run was measured on: the test images, or training images that "
    "were held out.",
    "A figure is the mean ± standard deviation over n seeds; a single seed has no deviation. Repeats of a seed are "
    "averaged first. In a cross-validation n counts folds: each run is measured on one part of the training images and "
    "learns from the others.",
    "“Last epoch” is the accuracy at the end of training. “Best on” names the images that the best epoch was chosen "
    "on: if the accuracy is measured on the same images, it flatters; with validation images it does not.",
    "“Training” is the time of one run, evaluations included, its device and precision; “shared” means that other runs "
    "used the device as well. A row with runs on several devices or in several precisions names each.",
)


@dataclass(frozen=True)
class Section:
    """One data set."""

    name: str
    groups: tuple[Group, ...]

    @property
    def title(self) -> str:
        return CATALOG[self.name].title if self.name in CATALOG else self.name

    @property
    def anchor(self) -> str:
        return f"data-{self.name}"

    @property
    def provenances(self) -> list[str]:
        """Where the images came from, as the runs recorded it."""
        return sorted({run.provenance for group in self.groups for run in group.runs})

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [row_of(group) for group in self.groups]

    @property
    def curves(self) -> list[tuple[str, list[tuple[str, Markup]]]]:
        """Title and charts of every row; a chart is a pair (title, SVG)."""
        return [(f"{group.first.model}, {group.first.name}", charts_of(group)) for group in self.groups]


def row_of(group: Group) -> tuple[str, ...]:
    """In the order of HEADS."""
    run = group.first
    return (
        run.model, run.name, measured_on(run.recipe), str(group.last), str(group.best),
        run.accuracy.chosen_on, group.n, f"{run.params:,}", group.training_time,
    )  # fmt: skip


def charts_of(group: Group) -> list[tuple[str, Markup]]:
    run = group.first
    name = f"{run.model} on {run.dataset}"
    accuracies, losses = ([one.curve[key] for one in group.runs] for key in ("accuracy", "loss"))
    return [
        (f"Accuracy on the {run.watched} images, in percent", accuracy_chart(accuracies, f"Accuracy of {name}")),
        ("Loss on the training images, logarithmic", loss_chart(losses, f"Loss of {name}")),
        *health_charts(group),
    ]


def sections_of(groups: list[Group]) -> list[Section]:
    names = dict.fromkeys(group.first.dataset for group in groups)
    return [Section(name, tuple(g for g in groups if g.first.dataset == name)) for name in names]


def run_rows(groups: Sequence[Group], repeats: bool = True) -> list[tuple[str, ...]]:
    """In the order of RUN_HEADS, repeats after the runs."""
    rows = []
    for group in groups:
        rows += [cells_of(run) for run in group.runs]
        if repeats:
            rows += [cells_of(run, " (repeat)") for run in group.repeats]
    return rows


def cells_of(run: Run, remark: str = "") -> tuple[str, ...]:
    """In the order of RUN_HEADS; commit and sha256 are abbreviated, the remark stands behind the seed."""
    fold, accuracy = run.recipe["fold"], run.accuracy
    return (
        run.dataset, run.model, run.name, f"{run.seed}{f', fold {fold}' if fold else ''}{remark}",
        f"{accuracy.last:.2f}", f"{accuracy.best:.2f}", f"{accuracy.best_epoch}", accuracy.chosen_on,
        f"{run.seconds.train:,.0f}", machine(run), short_commit(run.commit), run.weights_sha256[:8] or "–",
    )  # fmt: skip


def group_row(group: Group) -> dict[str, Any]:
    """A row for programs, under stable keys that docs/formats.md explains."""
    run = group.first
    return {
        "dataset": run.dataset, "model": run.model, "recipe": run.name,
        "measured_on": f"{group.n} of the training images" if group.folds else run.measured_on, "seeds": group.last.n,
        "last_mean": group.last.mean, "last_deviation": group.last.deviation,
        "best_mean": group.best.mean, "best_deviation": group.best.deviation,
        "params": run.params, "epochs": run.epochs, "train_seconds": group.gpu_seconds,
        "devices": "; ".join(machines(group.runs)),
    }  # fmt: skip


def run_row(run: Run, kind: str) -> dict[str, Any]:
    """The same for a single run; `kind` is runs or repeats."""
    return {
        "dataset": run.dataset, "model": run.model, "recipe": run.name, "seed": run.seed, "kind": kind,
        "last": run.accuracy.last, "best": run.accuracy.best, "best_epoch": run.accuracy.best_epoch,
        "train_seconds": run.seconds.train, "device": run.device, "precision": run.precision or None,
        "commit": run.commit, "weights_sha256": run.weights_sha256 or None,
    }  # fmt: skip


def short_commit(commit: str | None) -> str:
    return commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") if commit else "–"


def markdown(groups: list[Group]) -> str:
    """The tables alone."""
    parts = ["# Runs", ""]
    for section in sections_of(groups):
        parts += [f"## {section.title}", "", markdown_table(HEADS, section.rows, FIGURES), ""]
        parts += [f"Data: {' '.join(section.provenances)}", ""]
    if groups:
        parts += ["## How to read this", "", *(f"- {note}" for note in READING), ""]
        parts += ["## All runs", "", markdown_table(RUN_HEADS, run_rows(groups), RUN_FIGURES), ""]
    return "\n".join(parts if groups else [*parts, "There are no runs yet.", ""])


def page(groups: list[Group]) -> str:
    runs = [run for group in groups for run in group.runs + group.repeats]
    facts = {
        "runs": f"{len(runs)}",
        "data sets": f"{len({run.dataset for run in runs})}",
        "models": f"{len({run.model for run in runs})}",
        "training time": format_duration(sum(run.seconds.train for run in runs)),
        "devices": "; ".join(machines(runs)),
    }
    return render(
        "report.html", title="mspcaps · report", facts=facts, sections=sections_of(groups), heads=HEADS,
        figures=FIGURES, reading=READING, run_heads=RUN_HEADS, run_figures=RUN_FIGURES, run_rows=run_rows(groups),
    )  # fmt: skip


def write_report(results: Path = Path("results"), out: Path = Path("runs/report")) -> list[Group]:
    """Write index.html and report.md about every run of a ledger into the folder `out`, and nothing elsewhere."""
    groups = read_groups(results)
    write_atomically(out / PAGE, page(groups))
    write_atomically(out / TABLES, markdown(groups))
    return groups
