"""Attacks, from results/robustness/: the paper's figure with two objectives side by side, and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspcaps.evaluation.robustness import Curve, Robustness, format_eps, list_robustness
from mspcaps.pages import markdown_table
from mspcaps.pages.charts import Curve as ChartCurve
from mspcaps.pages.charts import Panel, panels_chart
from reproduction import paper
from reproduction.study_tables import NONE

DATASET, WHOLE = "cifar10", 10_000
IN_FIGURE = ("mspcaps_l", "mspcaps_t", "capsnet")  # of the paper, in the order of its legend
STEPS = {"fgsm": 1, "bim": 10}
NAMES = {"fgsm": "FGSM", "bim": "BIM-10"}
BUDGETS = tuple(level / 255 for level in (1, 2, 4, 8))
SUITE = {  # their names in the table, in its order
    ("apgd", "cross_entropy"): "APGD, cross-entropy",
    ("apgd", "targeted_dlr"): "APGD, targeted DLR",
    ("apgd", "log_odds"): "APGD, log-odds",
    ("votes", "log_odds"): "vote attack, log-odds",
    ("square", "cw"): "Square",
}
MARGIN = "margin"
EPS = (0.01, 0.03, 0.1)  # columns of the table
STRENGTH = 0.1  # the largest eps of the figure
ROBUST = "-linf8"  # the tag of weights that were trained against attacks


def read_attacks(results: Path) -> list[Robustness]:
    """The result of every weights file on the most images, those of the paper's figure first."""
    best: dict[tuple[str, str], Robustness] = {}
    for entry in list_robustness(results):
        other = best.get((entry.model, entry.weights))
        if entry.dataset == DATASET and (other is None or other.n < entry.n):
            best[entry.model, entry.weights] = entry
    rank = {model: place for place, model in enumerate(IN_FIGURE)}
    return sorted(best.values(), key=lambda entry: (rank.get(entry.model, len(rank)), entry.model, entry.weights))


def title_of(entry: Robustness) -> str:
    """MSPCaps-L, or the name of the model; weights that were trained against attacks say so."""
    name = {"capsnet": "CapsNet", **paper.TITLES}.get(entry.model, entry.model)
    return f"{name}, trained against attacks" if entry.weights.endswith(ROBUST) else name


def curves_of(entry: Robustness, attack: str, margin: bool) -> list[Curve]:
    """Curves of the paper's figure on the margin loss, or on all other objectives."""
    return [
        curve for curve in entry.curves
        if (curve.attack, curve.steps, curve.objective == MARGIN) == (attack, STEPS[attack], margin)
    ]  # fmt: skip


def strongest(curves: Iterable[Curve]) -> dict[float, float]:
    """The lowest accuracy that any of the curves leaves, by eps in increasing order."""
    lowest: dict[float, float] = {}
    for curve in curves:
        for point in curve.points:
            eps = round(point.eps, 6)
            lowest[eps] = min(point.accuracy, lowest.get(eps, 100.0))
    return dict(sorted(lowest.items()))


def figure(results: Sequence[Robustness]) -> str | None:
    """Margin loss on the left, the strongest of the other objectives on the right; None without a curve."""
    panels: dict[str, list[ChartCurve]] = {"margin loss": [], "strongest objective": []}
    for entry in filter(is_of_paper, results):
        for attack, name in NAMES.items():
            for panel, margin in zip(panels.values(), (True, False), strict=True):
                if left := strongest(curves_of(entry, attack, margin)):
                    points = list(({0.0: entry.clean_accuracy} | left).items())
                    color = IN_FIGURE.index(entry.model)
                    panel.append(ChartCurve(f"{title_of(entry)}, {name}", points, color, dashed=attack == "fgsm"))
    if not any(panels.values()):
        return None
    label = "Accuracy under FGSM and BIM: with the margin loss on the left, with the strongest objective on the right"
    charts = [Panel(title, curves, "eps, in pixel units") for title, curves in panels.items()]
    return panels_chart(charts, label, "accuracy (percent)")


def is_of_paper(entry: Robustness) -> bool:
    """Weights that the paper's figure is about: those of its recipe."""
    return entry.model in IN_FIGURE and not entry.weights.endswith(ROBUST)


def figure_table(results: Sequence[Robustness]) -> str:
    """Accuracy at some eps of the figure by objective, and the share of zero gradients."""
    rows = []
    for entry in filter(is_of_paper, results):
        for attack in NAMES:
            for margin in (True, False):
                curves = curves_of(entry, attack, margin)
                shares = [curve.zero_gradients for curve in curves if curve.zero_gradients is not None]
                if left := strongest(curves):
                    zero = f"{100 * min(shares):.1f} %" if shares else NONE
                    cells = [f"{left[eps]:.2f}" if eps in left else NONE for eps in EPS]
                    words = "margin loss" if margin else "strongest objective"
                    rows.append((title_of(entry), NAMES[attack], words, zero, *cells))
    heads = ("model", "attack", "objective", "zero gradients", *(f"eps {eps:g}" for eps in EPS))
    return markdown_table(heads, rows, range(3, len(heads))) if rows else ""


def suite_table(results: Sequence[Robustness]) -> str:
    """APGD, Square and the vote attack at 1, 2, 4 and 8 / 255; the last row of a model is what survives them all."""
    rows = []
    for entry in results:
        curves = {kind: [c for c in entry.curves if (c.attack, c.objective) == kind] for kind in SUITE}
        if not any(curves.values()):
            continue
        title, clean, images = title_of(entry), f"{entry.clean_accuracy:.2f}", f"{entry.n:,}"
        for kind, name in SUITE.items():
            if curves[kind]:
                strong = max(curves[kind], key=lambda curve: (curve.steps, curve.restarts))
                unit = "queries" if strong.attack == "square" else "steps"
                rows.append((title, images, f"{name}, {strong.steps:,} {unit}", clean, *left_at(entry, [strong])))
        if sum(map(bool, curves.values())) > 1:
            rows.append((title, images, "**all of them**", clean, *left_at(entry, entry.curves)))
    heads = ("model", "images", "attack", "without", *map(format_eps, BUDGETS))
    return markdown_table(heads, rows, (1, *range(3, len(heads)))) if rows else ""


def left_at(entry: Robustness, curves: Sequence[Curve]) -> list[str]:
    worst = [entry.worst(eps, curves) for eps in BUDGETS]
    return [NONE if value is None else f"{value:.2f}" for value in worst]


@dataclass(frozen=True)
class Stability:
    """The accuracy of a network under BIM with the largest eps, in percent."""

    n: int  # images
    margin: float  # if the attack follows the margin loss
    strongest: float  # if it follows the strongest other objective
    zero_gradients: float  # correctly classified images that the margin loss does not move

    @property
    def confirmed(self) -> bool:
        """By our rule: the strongest attack leaves at least half of what the margin loss leaves."""
        return self.strongest >= self.margin / 2


def stability_of_l(results: Sequence[Robustness]) -> Stability | None:
    """None if a part of it was not measured."""
    for entry in (one for one in results if one.model == "mspcaps_l" and is_of_paper(one)):
        margin, others = (curves_of(entry, "bim", which) for which in (True, False))
        flat, true = (strongest(curves).get(STRENGTH) for curves in (margin, others))
        if flat is not None and true is not None and margin[0].zero_gradients is not None:
            return Stability(entry.n, flat, true, 100 * margin[0].zero_gradients)
    return None


def sentences(results: Sequence[Robustness]) -> list[str]:
    """The paper's sentence about T and CapsNet with what was measured; none if it was not."""
    by_model = {entry.model: entry for entry in results if is_of_paper(entry)}
    if not {"mspcaps_t", "capsnet"} <= by_model.keys():
        return []
    lines = []
    for margin, words in ((True, "the margin loss"), (False, "the strongest other objective")):
        t, capsnet = (strongest(curves_of(by_model[model], "bim", margin)) for model in ("mspcaps_t", "capsnet"))
        tiny, caps = t.get(0.02), capsnet.get(0.02)
        if tiny is not None and caps is not None:
            lines.append(
                f"“MSPCaps-T's performance degrades at eps > 0.01, falling below the original CapsNet's accuracy”: "
                f"under BIM with eps 0.02 on {words} T keeps {tiny:.2f} %, CapsNet {caps:.2f} %."
            )
    return lines


def values_of(results: Path) -> dict[str, Any]:
    """What the template is filled with."""
    entries = read_attacks(results)
    return {
        "entries": entries, "figure": figure(entries), "figure_table": figure_table(entries),
        "sentences": sentences(entries), "stability": stability_of_l(entries), "strength": STRENGTH,
        "suite_table": suite_table(entries), "few": [e for e in entries if e.n < WHOLE], "title_of": title_of,
        "cautions": [(title_of(e), caution) for e in entries for caution in e.cautions],
        "missing": [model for model in IN_FIGURE if not any(e.model == model and is_of_paper(e) for e in entries)],
        "devices": sorted({e.environment["device"] for e in entries if "device" in e.environment}),
    }  # fmt: skip
