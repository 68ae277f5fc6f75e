"""The paper's Tables 2 and 3 with our runs beside every row, what each network costs, and where the two differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from mspcaps.bench.tables import number
from mspcaps.files import format_bytes
from mspcaps.models import Summary
from mspcaps.pages import markdown_table
from mspcaps.report.runs import Group, machines, settings
from mspcaps.training.recipe import list_recipes, read_toml, recipe_folder
from reproduction import paper
from reproduction.paper import PaperTable
from reproduction.study_tables import NONE, drop_empty, with_n
from reproduction.tables import Report, changes, cost_of, data_title, gap_to, recipe_settings
from reproduction.tradeoff import Mark, tradeoff_chart

MUCH = 2.0  # points: a larger difference needs an explanation
EPOCHS = 300  # of the paper's recipe
CONTROLS = {2: "resnet20", 3: "resnet18"}  # by number of the paper's table
TITLES = {"resnet20": "ResNet-20", "resnet18": "ResNet-18"}


@dataclass(frozen=True)
class Cell:
    """One network on one data set: what the paper prints ("-" where there is nothing), our runs, and those of fewer
    epochs than were planned, which do not count."""

    dataset: str
    printed: str
    group: Group | None
    native: Group | None = None  # by the network's own recipe
    short: Sequence[Group] = ()

    @property
    def figure(self) -> float | None:
        return None if self.printed == "-" else float(self.printed.rstrip("*"))

    @property
    def gap(self) -> float | None:
        """Our best epoch, mean over seeds, less the paper's figure, which is a best epoch too."""
        return gap_to(self.figure, self.group)

    @property
    def ours(self) -> str:
        """88.26 ± 0.10, best 88.40 ± 0.08, n = 3: on three lines, or the table would be too wide."""
        if self.group is None:
            return NONE
        epochs = self.group.first.epochs
        fewer = "" if epochs == EPOCHS else f", {epochs} epochs"
        return f"{self.group.last}<br>best {self.group.best}<br>n = {self.group.last.n}{fewer}"


@dataclass(frozen=True)
class Network:
    """A row of the paper, or a ResNet; an ensemble has no model here, only the printed figures."""

    title: str
    model: str
    printed_params: str
    cells: tuple[Cell, ...]

    @property
    def cost(self) -> Summary | None:
        return cost_of(self.model) if self.model else None

    @property
    def cifar10(self) -> Cell:
        return next(cell for cell in self.cells if cell.dataset == "cifar10")


@dataclass(frozen=True)
class LargeGap:
    """A cell whose two figures differ by more than two points, with what was tried and the likely cause."""

    network: Network
    cell: Cell
    tried: str = ""
    cause: str = ""

    @property
    def title(self) -> str:
        return f"{self.network.title} on {data_title(self.cell.dataset)}"

    @property
    def native_recipe(self) -> str | None:
        name = f"native/{self.cell.dataset}/{self.network.model}"
        return name if name in list_recipes() else None


@dataclass(frozen=True)
class Baselines:
    """Both tables, and the measured speed of their networks."""

    report: Report
    benchmarks: Sequence[Mapping[str, Any]] = ()
    words: Mapping[str, Any] = field(default_factory=lambda: paper.read_toml("differences.toml"))

    @cached_property
    def tables(self) -> list[tuple[PaperTable, list[Network]]]:
        return [(source, self.rows(source)) for source in paper.MAIN]

    def rows(self, source: PaperTable) -> list[Network]:
        """The baselines, MSPCaps, and the ResNet, which the paper does not have."""
        printed = [(b.network, b.model, b.params, b.accuracy) for b in source.baselines]
        own, control = source.figures[0].model, CONTROLS[source.number]
        figures = {f.dataset: f"{f.accuracy:.2f}" for f in source.figures}
        mine = tuple(figures[dataset] for dataset in source.datasets)
        printed.append((paper.TITLES[own], own, source.figures[0].params, mine))
        printed.append((TITLES[control], control, NONE, ("-",) * len(source.datasets)))
        networks = []
        for title, model, params, accuracies in printed:
            cells = (self.cell(model, *pair) for pair in zip(source.datasets, accuracies, strict=True))
            networks.append(Network(title, model, params, tuple(cells)))
        return networks

    def cell(self, model: str, dataset: str, printed: str) -> Cell:
        kind = "controls" if model in TITLES else "paper"
        own, native = (f"{way}/{dataset}/{model}" for way in (kind, "native"))
        return Cell(dataset, printed, self.trained(own), self.trained(native), self.lengths(own)[1])

    def trained(self, recipe: str) -> Group | None:
        """The runs of a recipe; if there are none, the longest that differ from it only in their epochs, if these are
        as many as planned."""
        return next(iter(self.lengths(recipe)[0]), None)

    def lengths(self, recipe: str) -> tuple[list[Group], list[Group]]:
        """The groups that differ from a recipe at most in their epochs, the longest first but its own before all: those
        with as many epochs as planned, and the rest."""
        if recipe not in list_recipes():
            return [], []
        own = recipe_settings(recipe)
        same = [g for g in self.report.tested if (g.first.model, g.first.dataset) == (own["model"], own["data"])]
        like = [g for g in same if not changes(settings(g.first.recipe), own)]
        like.sort(key=lambda g: (g.first.epochs != own["epochs"], -g.first.epochs))
        long = [g for g in like if g.first.epochs >= planned_epochs().get(recipe, own["epochs"])]
        return long, [g for g in like if g not in long]

    @property
    def short(self) -> list[tuple[Network, Cell, Group]]:
        """Runs of fewer epochs than planned."""
        return [(network, cell, group) for network in self.networks for cell in network.cells for group in cell.short]

    @property
    def networks(self) -> list[Network]:
        """All but the ensembles, which are not trained here."""
        return [network for _, rows in self.tables for network in rows if network.model]

    @property
    def untrained(self) -> list[Network]:
        """Those without a run on CIFAR-10 of the planned length: only if there are none may a page claim that all
        families are here."""
        return [network for network in self.networks if network.cifar10.group is None]

    @property
    def machines(self) -> list[str]:
        """What the counted runs were trained on."""
        groups = [cell.group for network in self.networks for cell in network.cells if cell.group]
        return machines(run for group in groups for run in group.runs)

    @property
    def ranked(self) -> list[Network]:
        """Capsule networks with runs on CIFAR-10, the least accurate first."""
        trained = {n.model: (n.cifar10.group.last.mean, n) for n in self.networks if n.cifar10.group}
        return [n for _, n in sorted(trained.values(), key=lambda pair: pair[0]) if n.model not in TITLES]

    @property
    def controls(self) -> list[Network]:
        return [network for network in self.networks if network.model in TITLES]

    @property
    def shortened(self) -> list[Network]:
        """Those whose runs on CIFAR-10 had fewer epochs than the paper's recipe."""
        return [n for n in self.networks if n.cifar10.group and n.cifar10.group.first.epochs != EPOCHS]

    @cached_property
    def differences(self) -> list[LargeGap]:
        """Where our best epoch and the paper's figure are more than two points apart, the largest first."""
        differences = []
        for network in self.networks:
            for cell in network.cells:
                if cell.gap is not None and abs(cell.gap) > MUCH:
                    words = self.words.get(network.model, {}).get(cell.dataset, {})
                    differences.append(LargeGap(network, cell, words.get("tried", ""), words.get("cause", "")))
        return sorted(differences, key=lambda difference: -abs(difference.cell.gap or 0.0))

    @property
    def unexplained(self) -> list[str]:
        return [difference.title for difference in self.differences if not (difference.tried and difference.cause)]

    @cached_property
    def speeds(self) -> dict[str, Mapping[str, Any]]:
        """The newest measurement of each model by `mspcaps bench families`."""
        results = sorted(self.bench_results, key=lambda result: result["environment"]["date"])
        return {name: family for result in results for name, family in result["families"].items()}

    def gpu_seconds(self, network: Network) -> float | None:
        """Of one run on CIFAR-10, from the ledger if it had a GPU to itself; None without a run on a GPU. Runs share a
        GPU unequally, so theirs is the time that the steps take alone, if it was measured."""
        trained, speed = network.cifar10.group, self.speeds.get(network.model)
        runs = tuple(run for run in (trained.runs if trained else ()) if "CPU" not in run.device)
        if not runs:
            return None
        group, run = Group(runs), runs[0]
        if group.alone or not speed or not run.images or self.bench_results[0]["environment"]["device"] != run.device:
            return group.gpu_seconds
        return run.images * run.epochs / float(speed["train"]["images_per_second"])

    @property
    def bench_results(self) -> list[Mapping[str, Any]]:
        """Those of the first device: a GPU, if one was measured."""
        results = [result for result in self.benchmarks if result["what"] == "families"]
        return [r for r in results if r["environment"]["device"] == results[0]["environment"]["device"]]


@cache
def planned_epochs() -> dict[str, int]:
    """Of the recipes that the sweep of the baselines cuts."""
    runs = read_toml(recipe_folder() / "sweeps" / "baselines.toml", "the sweep")["runs"]
    return {run["recipe"]: run["epochs"] for run in runs if "epochs" in run}


# Tables and charts


def accuracy_table(source: PaperTable, rows: Iterable[Network]) -> str:
    """The printed figure and ours for every data set."""
    heads = ["network", "parameters, paper", "parameters, ours"]
    for dataset in source.datasets:
        heads += [f"{data_title(dataset)}, paper", f"{data_title(dataset)}, ours"]
    lines = []
    for row in rows:
        params = f"{row.cost.params:,}" if row.cost else NONE
        line = [row.title, escape_stars(row.printed_params), params]
        for cell in row.cells:
            line += [escape_stars(cell.printed), cell.ours]
        lines.append(line)
    return markdown_table(heads, lines, range(1, len(heads)))


def escape_stars(cell: str) -> str:
    """The star of 99.53* would begin an emphasis."""
    return NONE if cell == "-" else cell.replace("*", "\\*")


def cost_table(baselines: Baselines, rows: Iterable[Network]) -> str:
    """At 3 x 32 x 32: arithmetic, training time from the ledger, and measured speed."""
    heads = (
        "network", "parameters", "MMAC", "training on CIFAR-10, GPU s", "epochs", "training, images/s", "relative",
        "peak memory", "inference, images/s",
    )  # fmt: skip
    lines = []
    for row in rows:
        if row.cost is None:
            continue
        group, speed = row.cifar10.group, baselines.speeds.get(row.model)
        seconds = baselines.gpu_seconds(row)
        trained = (NONE if seconds is None else f"{seconds:,.0f}", f"{group.first.epochs}" if group else NONE)
        cells = speed_cells(speed) if speed else (NONE,) * 4
        lines.append((row.title, f"{row.cost.params:,}", number(row.cost.macs / 1e6), *trained, *cells))
    columns, rest = drop_empty(heads, lines)
    return markdown_table(columns, rest, range(1, len(columns)))


def short_table(baselines: Baselines) -> str:
    """Runs that the tables above leave out."""
    rows = [
        (
            network.title, data_title(cell.dataset), f"{group.first.epochs}", with_n(group.last), str(group.best),
            group.training_time,
        )
        for network, cell, group in baselines.short
    ]  # fmt: skip
    heads = ("network", "data", "epochs", "last epoch", "best epoch", "training")
    return markdown_table(heads, rows, (2, 3, 4)) if rows else ""


def speed_cells(family: Mapping[str, Any]) -> tuple[str, ...]:
    train, memory = family["train"], family["train"].get("peak_memory_bytes")
    return (
        f"{train['images_per_second']:,.0f}", f"{number(train['relative'])} ×",
        NONE if memory is None else format_bytes(memory), f"{family['infer']['images_per_second']:,.0f}",
    )  # fmt: skip


def charts(baselines: Baselines) -> dict[str, str]:
    """Accuracy against parameters and against the cost of training; file name -> SVG."""
    by_size, by_cost = [], []
    for network in baselines.networks:
        cell, control = network.cifar10, network.model in TITLES
        last = cell.group.last.mean if cell.group else None
        assert network.cost is not None
        title = network.title
        if cell.group and cell.group.first.epochs != EPOCHS:
            title += f" ({cell.group.first.epochs} epochs)"
        if last is not None or cell.figure is not None:
            by_size.append(Mark(title, network.cost.params, last, cell.figure, control))
        if seconds := baselines.gpu_seconds(network):
            by_cost.append(Mark(title, seconds, last, None, control))
    upwards = "CIFAR-10 accuracy (percent)"
    size, cost = "parameters at 3 × 32 × 32", "training on CIFAR-10, seconds of one GPU"
    svgs = {"accuracy_parameters.svg": tradeoff_chart(by_size, (size, upwards), "Accuracy against parameters")}
    if by_cost:
        svgs["accuracy_cost.svg"] = tradeoff_chart(by_cost, (cost, upwards), "Accuracy against the cost of training")
    return svgs
