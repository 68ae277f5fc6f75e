"""The paper's tables, from paper.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """One accuracy of MSPCaps, in percent."""

    model: str  # its name in this library
    dataset: str
    accuracy: float
    params: str
    setting: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A row of another network; cells as printed."""

    network: str
    params: str
    accuracy: tuple[str, ...]  # in the order of the table's data sets
    model: str = ""  # its name in this library; ensembles have none


@dataclass(frozen=True)
class PaperTable:
    """One table of results; paper.toml says what each field means."""

    number: int
    label: str  # in the paper's source
    title: str
    figures: tuple[Figure, ...]
    heads: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ("cifar10",)
    baselines: tuple[Baseline, ...] = ()
    claim: str = ""
    note: str = ""
    clash: str = ""


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def frozen(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def read_table(values: dict[str, Any]) -> PaperTable:
    figures = tuple(Figure(**frozen(figure)) for figure in values.pop("figures"))
    baselines = tuple(Baseline(**frozen(baseline)) for baseline in values.pop("baselines", ()))
    return PaperTable(**frozen(values), figures=figures, baselines=baselines)


_paper = read_toml("paper.toml")
TITLES: dict[str, str] = _paper["titles"]
TABLES = tuple(read_table(values) for values in _paper["tables"])
MAIN = tuple(table for table in TABLES if table.baselines)
ABLATIONS = tuple(table for table in TABLES if not table.baselines)


def figure_of(model: str, dataset: str) -> Figure | None:
    """The paper's figure for a model on a data set, if it has one; the same wherever it is printed."""
    return next((f for table in TABLES for f in table.figures if (f.model, f.dataset) == (model, dataset)), None)
