"""Where a figure of the paper is missed: by how much; and what was tried in place of a recipe, and what came of it.

What was tried was measured on held-out training images, beside the recipe as it is under the same conditions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mspcaps.data.catalog import facts
from mspcaps.report.difference import Difference
from mspcaps.report.paper import TITLES
from mspcaps.report.runs import Group, grouped, resolved
from mspcaps.report.tables import PREDICTION, Report, Row, in_brackets, signed, with_n
from mspcaps.training.recipe import load_recipe

MISSED = "Where a figure is missed, and what was tried"
UNCHANGED = "The paper's recipe is left unchanged; an improvement belongs in a recipe of another name."
SHORTENED = {"name", "epochs", "held_out"}  # in what a trial differs from its recipe anyway


@dataclass(frozen=True)
class Missed:
    """One figure: what is said about it, one sentence per trial, and what follows from them."""

    sentence: str
    trials: tuple[str, ...]
    found: str


def missed(report: Report) -> list[Missed]:
    """First what is missed, then what is not and was tried to be bettered all the same."""
    trials = grouped([run for run in report.runs if run.recipe["held_out"]])
    rows = sorted((row for row in report.paper_rows if row.gap is not None), key=lambda row: not is_missed(row))
    told = [(row, explained(row, trials)) for row in rows]
    return [one for row, one in told if is_missed(row) or one.trials]


def is_missed(row: Row) -> bool:
    return row.gap is not None and row.gap < 0


def explained(row: Row, trials: list[Group]) -> Missed:
    name = f"**{TITLES.get(row.model, row.model)} on {facts(row.dataset).title}**"
    sentence = f"{name}: {shortfall(row)}" if is_missed(row) else f"{name}: the paper's figure is reached."
    recipe = resolved(load_recipe(f"paper/{row.dataset}/{row.model}"))
    tried = [(changes(g.first.recipe, recipe), g) for g in trials if (row.model, row.dataset) == of(g)]
    bases = {length(group): group for words, group in tried if not words}
    changed = [(words, group, bases.get(length(group))) for words, group in tried if words]
    if not changed:
        return Missed(sentence, (), "No alternative has been tried yet.")
    sentence += " Alternatives to the recipe, measured on held-out training images after the last epoch:"
    better = [words for words, group, base in changed if base and clearly(group, base)]
    found = f"Clearly better: {' and '.join(better)}. {UNCHANGED}" if better else "None is clearly better."
    return Missed(sentence, tuple(told(*one) for one in changed), found)


def shortfall(row: Row) -> str:
    assert row.figure is not None and row.group is not None and row.gap is not None
    images, wanted, short = facts(row.dataset).test, row.figure.accuracy, abs(row.gap)
    error = math.sqrt(wanted * (100 - wanted) / images)
    margin = row.further.margin if row.further else None
    seeds = f" The {PREDICTION} for one more run of ours is our mean ± {margin:.2f}." if margin else ""
    return (
        f"the mean of our best epochs is {row.group.best.mean:.2f}, the paper has {wanted:.2f}. The gap is {short:.2f} "
        f"points, or {short * images / 100:.0f} of {images:,} images; the standard error of an accuracy measured on "
        f"that many is {error:.2f} points.{seeds}"
    )


def length(group: Group) -> tuple[int, int]:
    """Trials are compared with what trained as long on as many images."""
    return group.first.recipe["epochs"], group.first.recipe["held_out"]


def clearly(group: Group, base: Group) -> bool:
    difference = Difference.of(group.last, base.last)
    return difference.clear and difference.gap > 0


def of(group: Group) -> tuple[str, str]:
    return group.first.model, group.first.dataset


def told(words: str, group: Group, base: Group | None) -> str:
    epochs, held_out = length(group)
    text, how = f"{words}: {with_n(group.last)}", f"{epochs} epochs, {held_out:,} images"
    if base is None:
        return f"{text}; {how}; the unchanged recipe was not measured in this way"
    difference = Difference.of(group.last, base.last)
    against = f"{with_n(base.last)} with the unchanged recipe"
    return f"{text} against {against}, difference {signed(difference.gap, 2)}{in_brackets(difference)}; {how}"


def changes(trial: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """In what a trial departs from the recipe, in words; nothing for the recipe as it is."""
    said = [f"initial {name} × {factor:g}" for name, factor in trial.get("initial_scale", {}).items() if factor != 1]
    for key, value in recipe.items():
        if key in {*SHORTENED, "initial_scale"}:
            continue
        if isinstance(value, Mapping):
            said += [f"{key} {name} {now}" for name, now in trial[key].items() if now != value[name]]
        elif trial[key] != value:
            said.append(f"{key} {trial[key]}")
    return ", ".join(said)
