"""What results/robustness/ says about attacks: the paper's figure with two objectives side by side, and the tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspcaps.evaluation.robustness import Curve, Robustness, format_eps, list_robustness
from mspcaps.pages.charts import Curve as ChartCurve
from mspcaps.pages.charts import Panel, panels_chart
from reproduction import paper
from reproduction.study_tables import markdown_table

DATASET, WHOLE = "cifar10", 10_000
IN_FIGURE = ("mspcaps_l", "mspcaps_t", "capsnet")  # of the paper, in the order of its legend
STEPS = {"fgsm": 1, "bim": 10}
NAMES = {"fgsm": "FGSM", "bim": "BIM-10"}
BUDGETS = tuple(level / 255 for level in (1, 2, 4, 8))
SUITE = {  # how the table calls them, in its order
    ("apgd", "cross_entropy"): "APGD, cross-entropy",
    ("apgd", "targeted_dlr"): "APGD, targeted DLR",
    ("apgd", "log_odds"): "APGD, log-odds",
    ("votes", "log_odds"): "vote attack, log-odds",
    ("square", "cw"): "Square",
}
MARGIN = "margin"
STRENGTH = 0.1  # the largest eps of the figure
ROBUST = "-linf8"  # the tag of weights that were trained against attacks
NOTHING = "–"


def read_attacks(results: Path) -> list[Robustness]:
    """Of every weights file the result on most images, those of the paper's figure first."""
    best: dict[tuple[str, str], Robustness] = {}
    for found in list_robustness(results):
        known = best.get((found.model, found.weights))
        if found.dataset == DATASET and (known is None or known.n < found.n):
            best[found.model, found.weights] = found
    rank = {model: place for place, model in enumerate(IN_FIGURE)}
    return sorted(best.values(), key=lambda found: (rank.get(found.model, len(rank)), found.model, found.weights))


def title_of(found: Robustness) -> str:
    """MSPCaps-L, or the name of the model; weights that were trained against attacks say so."""
    name = {"capsnet": "CapsNet", **paper.TITLES}.get(found.model, found.model)
    return f"{name}, trained against attacks" if found.weights.endswith(ROBUST) else name


def curves_of(found: Robustness, attack: str, margin: bool) -> list[Curve]:
    """Those of the paper's figure on the margin loss, or on all other objectives."""
    return [
        curve for curve in found.curves
        if (curve.attack, curve.steps, curve.objective == MARGIN) == (attack, STEPS[attack], margin)
    ]  # fmt: skip


def strongest(curves: Iterable[Curve]) -> list[tuple[float, float]]:
    """At every eps the lowest accuracy that any one of them leaves."""
    lowest: dict[float, float] = {}
    for curve in curves:
        for point in curve.points:
            eps = round(point.eps, 6)
            lowest[eps] = min(point.accuracy, lowest.get(eps, 100.0))
    return sorted(lowest.items())


def figure(results: Sequence[Robustness]) -> str | None:
    """Margin loss on the left, the strongest of the other objectives on the right; None without a curve."""
    panels: dict[str, list[ChartCurve]] = {"margin loss": [], "strongest objective": []}
    for found in (found for found in results if is_of_paper(found)):
        for attack, name in NAMES.items():
            for panel, margin in zip(panels.values(), (True, False), strict=True):
                if points := strongest(curves_of(found, attack, margin)):
                    points = [(0.0, found.clean_accuracy), *(point for point in points if point[0] > 0)]
                    color = IN_FIGURE.index(found.model)
                    panel.append(ChartCurve(f"{title_of(found)}, {name}", points, color, dashed=attack == "fgsm"))
    if not any(panels.values()):
        return None
    label = "Accuracy under FGSM and BIM: with the margin loss on the left, with the strongest objective on the right"
    drawn = [Panel(title, curves, "eps, in pixel units") for title, curves in panels.items()]
    return panels_chart(drawn, label, "accuracy (percent)")


def is_of_paper(found: Robustness) -> bool:
    """Weights that the paper's figure is about: those of its recipe."""
    return found.model in IN_FIGURE and not found.weights.endswith(ROBUST)


def figure_table(results: Sequence[Robustness]) -> str:
    """What is left at some eps of the figure, by objective, and where the gradient is exactly zero."""
    rows = []
    for found in (found for found in results if is_of_paper(found)):
        for attack in NAMES:
            for margin in (True, False):
                curves = curves_of(found, attack, margin)
                share = [curve.zero_gradients for curve in curves if curve.zero_gradients is not None]
                if left := dict(strongest(curves)):
                    zero = f"{100 * min(share):.1f} %" if share else NOTHING
                    cells = [f"{left[eps]:.2f}" if eps in left else NOTHING for eps in (0.01, 0.03, 0.1)]
                    words = "margin loss" if margin else "strongest objective"
                    rows.append((title_of(found), NAMES[attack], words, zero, *cells))
    heads = ("model", "attack", "objective", "zero gradients", "eps 0.01", "0.03", "0.1")
    return markdown_table(heads, rows, range(3, len(heads))) if rows else ""


def suite_table(results: Sequence[Robustness]) -> str:
    """APGD, Square and the vote attack at 1, 2, 4 and 8 / 255; the last line of a model is what survives them all."""
    rows = []
    for found in results:
        curves = {kind: [c for c in found.curves if (c.attack, c.objective) == kind] for kind in SUITE}
        if not any(curves.values()):
            continue
        title, clean, images = title_of(found), f"{found.clean_accuracy:.2f}", f"{found.n:,}"
        for kind, name in SUITE.items():
            if curves[kind]:
                strong = max(curves[kind], key=lambda curve: (curve.steps, curve.restarts))
                rows.append((title, images, f"{name}, {strong.steps} steps", clean, *left_at(found, [strong])))
        if sum(map(bool, curves.values())) > 1:
            rows.append((title, images, "**all of them**", clean, *left_at(found, found.curves)))
    heads = ("model", "images", "attack", "without", *map(format_eps, BUDGETS))
    return markdown_table(heads, rows, (1, *range(3, len(heads)))) if rows else ""


def left_at(found: Robustness, curves: Sequence[Curve]) -> list[str]:
    worst = [found.worst(eps, curves) for eps in BUDGETS]
    return [NOTHING if value is None else f"{value:.2f}" for value in worst]


@dataclass(frozen=True)
class Stability:
    """What a network keeps of its accuracy under BIM with the largest eps, in percent."""

    n: int  # images
    margin: float  # if the attack follows the margin loss
    strongest: float  # if it follows the strongest other objective
    zero_gradients: float  # images that it gets right and that the margin loss does not move

    @property
    def confirmed(self) -> bool:
        """By our rule: the attack that is not blind leaves at least half of what the blind one leaves."""
        return self.strongest >= self.margin / 2


def stability_of_l(results: Sequence[Robustness]) -> Stability | None:
    """None if something of it was not measured."""
    for found in (one for one in results if one.model == "mspcaps_l" and is_of_paper(one)):
        margin, others = (curves_of(found, "bim", which) for which in (True, False))
        flat, true = (dict(strongest(curves)).get(STRENGTH) for curves in (margin, others))
        if flat is not None and true is not None and margin[0].zero_gradients is not None:
            return Stability(found.n, flat, true, 100 * margin[0].zero_gradients)
    return None


def sentences(results: Sequence[Robustness]) -> list[str]:
    """The paper's sentence about T and CapsNet with what was measured; nothing if it was not."""
    known = {found.model: found for found in results if is_of_paper(found)}
    left: Callable[[str, bool, float], float | None] = lambda model, margin, eps: (  # noqa: E731
        dict(strongest(curves_of(known[model], "bim", margin))).get(eps) if model in known else None
    )
    told = []
    for margin, words in ((True, "the margin loss"), (False, "the strongest other objective")):
        tiny, caps = left("mspcaps_t", margin, 0.02), left("capsnet", margin, 0.02)
        if tiny is not None and caps is not None:
            told.append(
                f"“MSPCaps-T's performance degrades at eps > 0.01, falling below the original CapsNet's accuracy”: "
                f"under BIM with eps 0.02 on {words} T keeps {tiny:.2f} %, CapsNet {caps:.2f} %."
            )
    return told


def values_of(results: Path) -> dict[str, Any]:
    """What the template is filled with."""
    found = read_attacks(results)
    return {
        "found": found, "figure": figure(found), "figure_table": figure_table(found), "sentences": sentences(found),
        "stability": stability_of_l(found), "strength": STRENGTH, "suite_table": suite_table(found),
        "few": [f for f in found if f.n < WHOLE], "title_of": title_of,
        "cautions": [(title_of(f), caution) for f in found for caution in f.cautions],
        "missing": [model for model in IN_FIGURE if not any(f.model == model and is_of_paper(f) for f in found)],
        "devices": sorted({f.environment["device"] for f in found if "device" in f.environment}),
    }  # fmt: skip
