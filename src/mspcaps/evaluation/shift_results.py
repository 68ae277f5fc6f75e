"""A model's accuracy on changed images: the typed entry of results/robustness/, as a table and as a chart.

results/robustness/shifts-<model>-<data>[-<recipe>-seed<k>][-<images>].json   one per trained network
results/robustness/shifts-<data>[-<images>].svg                               all of them in one chart
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.evaluation.shifts import CHANGES, ShiftEvaluation
from mspcaps.files import write_atomically, write_json
from mspcaps.models import unwrapped
from mspcaps.pages.charts import Curve, Panel, panels_chart

FOLDER, WHAT = "robustness", "shifts"


@dataclass(frozen=True)
class ShiftResult:
    """One network on one data set."""

    model: str
    dataset: str
    evaluation: ShiftEvaluation
    recipe: str = ""  # its name; empty if the weights do not say
    seed: int | None = None  # of the training run
    part: bool = False  # whether only some of the images were measured
    weights_sha256: str | None = None
    environment: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, model: nn.Module, dataset: str, evaluation: ShiftEvaluation, part: bool = False,
        weights_sha256: str | None = None, environment: Mapping[str, Any] | None = None,
    ) -> "ShiftResult":  # fmt: skip
        """With model, recipe and seed from the model's metadata."""
        inner = unwrapped(model)
        name = getattr(inner, "config", {}).get("name") or type(inner).__name__
        recipe = getattr(inner, "metadata", {}).get("recipe") or {}
        training = (recipe.get("name", ""), recipe.get("seed"))
        return cls(name, dataset, evaluation, *training, part, weights_sha256, dict(environment or {}))

    @property
    def path(self) -> Path:
        """Path of the entry, below results/."""
        seed = "" if self.seed is None else f"seed{self.seed}"
        return self._named(".json", self.model, self.dataset, self.recipe, seed)

    @property
    def figure(self) -> Path:
        """Path of the chart that it is part of, below results/."""
        return self._named(".svg", self.dataset)

    def _named(self, suffix: str, *parts: str) -> Path:
        count = str(self.evaluation.n) if self.part else ""
        return Path(FOLDER, "-".join(filter(None, (WHAT, *parts, count))).replace(" ", "-") + suffix)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and rows: accuracy in percent for every change and strength, and the means."""
        evaluation, means = self.evaluation, self.evaluation.means
        heads = ("change", "strengths", "1", "2", "3", "4", "5", "mean")
        rows: list[tuple[str, ...]] = [("none", "", "", "", "", "", "", f"{evaluation.clean:.2f}")]
        for name, values in evaluation.accuracy.items():
            change = CHANGES[name]
            strengths = f"{', '.join(f'{strength:g}' for strength in change.strengths)} {change.unit}"
            rows.append((name, strengths, *(f"{value:.2f}" for value in values), f"{means[name]:.2f}"))
        rows.append(("mean of all", "", "", "", "", "", "", f"{evaluation.mean:.2f}"))
        return heads, rows


def shift_chart(results: Sequence[ShiftResult], label: str) -> str:
    """Accuracy over strength: a panel per change, a line per model and recipe, averaged over seeds."""
    lines: dict[str, list[ShiftEvaluation]] = {}
    for result in results:
        lines.setdefault(f"{result.model}{f', {result.recipe}' if result.recipe else ''}", []).append(result.evaluation)
    panels = []
    for name, change in CHANGES.items():
        curves = []
        for line, evaluations in lines.items():
            if seeds := [(one.clean, *one.accuracy[name]) for one in evaluations if name in one.accuracy]:
                title = f"{line}{f' (n = {len(seeds)})' if len(seeds) > 1 else ''}"
                curves.append(Curve(title, list(enumerate(map(statistics.fmean, zip(*seeds, strict=True))))))
        if curves:
            panels.append(Panel(name, curves, change.unit, ["0", *(f"{strength:g}" for strength in change.strengths)]))
    return panels_chart(panels, label)


def write_shifts(results: Path, result: ShiftResult) -> tuple[Path, Path]:
    """Write the entry, and redraw the chart of all entries with the same data and number of images -> their paths"""
    path = results / result.path
    evaluation = {key: value for key, value in asdict(result.evaluation).items() if key != "seed"}
    entry = {"what": WHAT, **asdict(result), "evaluation": evaluation, "change_seed": result.evaluation.seed}
    write_json(path, entry)
    together = [other for other in list_shifts(results) if other.figure == result.figure]
    figure = results / result.figure
    write_atomically(figure, shift_chart(together, f"Accuracy on changed images of {result.dataset} against strength"))
    return path, figure


def read_shifts(path: Path) -> ShiftResult:
    """Read one entry and check it."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry.pop("what") != WHAT:
            raise ValueError("it is another kind of result")
        fields, seed = entry.pop("evaluation"), entry.pop("change_seed")
        accuracy = {name: tuple(float(value) for value in values) for name, values in fields["accuracy"].items()}
        if odd := [name for name, row in accuracy.items() if name not in CHANGES or len(row) != 5]:
            raise ValueError(f"{odd[0]} is no change with five strengths")
        evaluation = ShiftEvaluation(float(fields["clean"]), accuracy, int(fields["n"]), seed)
        return ShiftResult(**entry, evaluation=evaluation)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MspcapsError(f"{path} is not a result of `mspcaps eval --shifts`: {error}") from error


def list_shifts(results: Path) -> list[ShiftResult]:
    """All entries of a results folder, in the order of their file names."""
    return [read_shifts(path) for path in sorted((results / FOLDER).glob(f"{WHAT}-*.json"))]
