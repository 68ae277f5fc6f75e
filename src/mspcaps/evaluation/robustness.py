"""A model's accuracy under attack: the typed entry of results/robustness/, as a table and as a chart.

results/robustness/attack-<weights>[-<images>].json, one for each weights file and number of images, with model and data
in the name if the weights do not name them. Every attack at every budget records which images survived it, so that the
worst case over several attacks can be counted afterwards.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically, write_json
from mspcaps.pages.charts import Curve as ChartCurve
from mspcaps.pages.charts import Panel, panels_chart

FOLDER, PREFIX = "robustness", "attack-"
MAX_TITLE = 44  # characters above the chart
Bits = np.ndarray[Any, np.dtype[np.bool_]]  # one per image


@dataclass(frozen=True)
class Point:
    """One attack with one budget."""

    eps: float  # in pixel units: images lie in [0, 1]
    survived: Bits = field(repr=False)  # the images that the model still gets right under attack
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        """Percent"""
        return 100 * float(self.survived.mean())

    def to_dict(self) -> dict[str, Any]:
        return {
            "eps": self.eps, "accuracy": round(self.accuracy, 4), "seconds": round(self.seconds, 2),
            "survived": pack(self.survived),
        }  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One attack with all its budgets, in increasing order."""

    attack: str
    objective: str
    steps: int
    restarts: int
    zero_gradients: float | None  # share of the images whose gradient is exactly zero; None if the attack uses none
    points: tuple[Point, ...]

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.attack, self.objective, self.steps, self.restarts

    @property
    def label(self) -> str:
        """PGD-20 on the cross-entropy, 5 restarts"""
        name = {"fgsm": "FGSM", "square": "Square", "votes": "vote attack"}.get(self.attack, self.attack.upper())
        steps = "" if self.attack == "fgsm" else f"-{self.steps}"
        restarts = f", {self.restarts} restarts" if self.restarts > 1 else ""
        return f"{name}{steps} on {self.objective.replace('_', ' ')}{restarts}"

    def at(self, eps: float) -> Point | None:
        return next((point for point in self.points if same(point.eps, eps)), None)


@dataclass(frozen=True)
class Caution:
    """One sentence about a reason for doubt; `check` is the diagnostic that raised it."""

    check: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Robustness:
    """The result of one call of `attack`, or of several on the same weights and images."""

    model: str
    weights: str  # their name; empty for a module in memory
    weights_sha256: str | None
    dataset: str
    seed: int
    clean: Bits = field(repr=False)  # which images the model gets right before any attack
    curves: tuple[Curve, ...]
    cautions: tuple[Caution, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict, repr=False)
    images_sha256: str | None = field(default=None, repr=False)  # of pixels and labels; None in older files

    @property
    def n(self) -> int:
        return len(self.clean)

    def same_subject(self, other: "Robustness") -> bool:
        """Whether both are of the same weights, images and seed. Where a file does not say which images, the names of
        the data and their number decide."""
        mine, theirs = ((r.model, r.weights_sha256, r.dataset, r.seed, r.n) for r in (self, other))
        return mine == theirs and len({self.images_sha256, other.images_sha256} - {None}) < 2

    @property
    def clean_accuracy(self) -> float:
        """Percent"""
        return 100 * float(self.clean.mean())

    @property
    def budgets(self) -> list[float]:
        budgets: list[float] = []
        for eps in sorted(point.eps for curve in self.curves for point in curve.points):
            if not budgets or not same(budgets[-1], eps):
                budgets.append(eps)
        return budgets

    def worst(self, eps: float, curves: Iterable[Curve] | None = None) -> float | None:
        """Percent of the images that survive every attack (default: all attacks) with this budget."""
        chosen = self.curves if curves is None else curves
        survived = [point.survived for curve in chosen if (point := curve.at(eps)) is not None]
        return 100 * float(np.logical_and.reduce(survived).mean()) if survived else None

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and rows: accuracy in percent, a column per budget, the worst case last."""
        heads = ("attack", "zero gradients", *(f"eps {format_eps(eps)}" for eps in self.budgets))
        rows = [
            (
                curve.label, "-" if curve.zero_gradients is None else f"{100 * curve.zero_gradients:.1f} %",
                *("-" if (point := curve.at(eps)) is None else f"{point.accuracy:.2f} %" for eps in self.budgets),
            )
            for curve in self.curves
        ]  # fmt: skip
        if len(rows) > 1:
            rows.append(("all of them", "", *(f"{self.worst(eps):.2f} %" for eps in self.budgets)))
        return heads, rows

    def figure(self) -> str:
        """A standalone SVG: accuracy over eps, a line per attack."""
        lines = [
            ChartCurve(curve.label, [(0.0, self.clean_accuracy), *((255 * p.eps, p.accuracy) for p in curve.points)])
            for curve in self.curves
        ]
        images = f"{self.n:,} images of {self.dataset}"
        whole = f"{self.weights or self.model}, {images}"
        title = whole if len(whole) <= MAX_TITLE else images
        panel = Panel(title, lines, "eps, in 255ths")
        return panels_chart([panel], f"Accuracy under attack: {whole}", "accuracy, %")

    def merged(self, other: "Robustness") -> "Robustness":
        """Add the points of another run on the same weights and images; they replace points that both have."""
        curves = {curve.key: curve for curve in self.curves}
        for curve in other.curves:
            before = curves[curve.key].points if curve.key in curves else ()
            points = [*curve.points, *(point for point in before if curve.at(point.eps) is None)]
            curves[curve.key] = replace(curve, points=tuple(sorted(points, key=lambda point: point.eps)))
        from mspcaps.evaluation.attacks.diagnostics import COMPARISONS, compare  # which import this file

        kept = [caution for caution in (*self.cautions, *other.cautions) if caution.check not in COMPARISONS]
        cautions = tuple(dict.fromkeys((*compare(tuple(curves.values())), *kept)))
        return replace(other, curves=tuple(curves.values()), cautions=cautions)

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": "attack", "model": self.model, "weights": self.weights, "weights_sha256": self.weights_sha256,
            "dataset": self.dataset, "images": self.n, "seed": self.seed,
            "clean_accuracy": round(self.clean_accuracy, 4), "clean": pack(self.clean),
            "images_sha256": self.images_sha256,
            "curves": [
                vars(curve) | {"points": [point.to_dict() for point in curve.points]} for curve in self.curves
            ],
            "cautions": [asdict(caution) for caution in self.cautions], "environment": self.environment,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> "Robustness":
        n = entry["images"]
        curves = tuple(
            Curve(
                **{key: value for key, value in curve.items() if key != "points"},
                points=tuple(
                    Point(point["eps"], unpack(point["survived"], n), point["seconds"]) for point in curve["points"]
                ),
            )
            for curve in entry["curves"]
        )
        facts = {key: entry[key] for key in ("model", "weights", "weights_sha256", "dataset", "seed", "environment")}
        facts |= {"cautions": tuple(Caution(**caution) for caution in entry["cautions"])}
        return cls(**facts, clean=unpack(entry["clean"], n), curves=curves, images_sha256=entry.get("images_sha256"))


def same(a: float, b: float) -> bool:
    return abs(a - b) < 1e-6


def format_eps(eps: float) -> str:
    """8/255 if it is a whole number of grey levels, else 0.03"""
    levels = eps * 255
    return f"{round(levels)}/255" if levels and abs(levels - round(levels)) < 1e-3 else f"{eps:g}"


def parse_eps(text: str) -> float:
    """8/255 or 0.03"""
    above, slash, below = text.partition("/")
    try:
        return float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        raise MspcapsError(f"eps is {text!r}, but must be a number such as 0.03 or 8/255") from None


def pack(bits: Bits) -> str:
    """Compressed text: a few characters if few or most of the bits are set."""
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def unpack(text: str, n: int) -> Bits:
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8))
    if not n <= len(bits) < n + 8:
        raise ValueError(f"{len(bits)} bits for {n} images")
    return bits[:n].astype(bool)


def result_path(results: Path, result: Robustness, images: int | None = None) -> Path:
    """The name contains `images` if only that many were attacked, model and data if the weights do not name them, and
    the seed unless it is 0."""
    parts = [result.weights] if result.weights else []
    if not result.weights.startswith(result.model):
        parts.insert(0, result.model)
    named_data = result.weights.partition(".")[2]  # cifar10 or cifar10-linf8 in mspcaps_t.cifar10-linf8
    if not f"{named_data}-".startswith(f"{result.dataset}-"):
        parts.append(result.dataset.replace(" ", "-"))
    if images is not None:
        parts.append(str(images))
    if result.seed:
        parts.append(f"seed{result.seed}")
    return results / FOLDER / f"{PREFIX}{'-'.join(parts)}.json"


def write_robustness(path: Path, result: Robustness, environment: dict[str, Any] | None = None) -> Robustness:
    """Write the result, merged with what the file holds for the same weights and images, and the chart beside it."""
    result = replace(result, environment=environment or result.environment)
    if path.is_file():
        before = read_robustness(path)
        if before.same_subject(result):
            result = before.merged(result)
    write_json(path, result.to_dict())
    write_atomically(path.with_suffix(".svg"), result.figure())
    return result


def read_robustness(path: Path) -> Robustness:
    try:
        return Robustness.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise MspcapsError(f"{path} is not a result of `mspcaps attack`: {error}") from error


def list_robustness(results: Path) -> Sequence[Robustness]:
    """All entries of a results folder, in the order of their file names."""
    return [read_robustness(path) for path in sorted((results / FOLDER).glob(f"{PREFIX}*.json"))]
