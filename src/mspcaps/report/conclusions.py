"""Do the paper's conclusions hold here? Each as differences of our runs, judged against the spread of the seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mspcaps.report import paper
from mspcaps.report.dots import Line
from mspcaps.report.runs import Group, Run, follows, grouped
from mspcaps.report.tables import signed, with_n
from mspcaps.training.recipe import list_recipes, load_recipe

CLEAR = 2.0  # standard errors that make a difference more than chance


@dataclass(frozen=True)
class Side:
    """One model of a comparison, in words and by name."""

    words: str
    model: str


@dataclass(frozen=True)
class Claim:
    """What is said to be better than what; the first of each pair should win."""

    title: str
    says: str
    pairs: tuple[tuple[Side, Side], ...]
    source: paper.PaperTable | None = None  # None: a question of our own

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().replace(",", "").split())

    @property
    def sides(self) -> list[Side]:
        """Each once, in the order of their first mention."""
        return list(dict.fromkeys(side for pair in self.pairs for side in pair))


T_ALL, T_8 = Side("all three scales", "mspcaps_t"), Side("8 × 8 alone", "mspcaps_t_scale8")
T_FINE = Side("32 × 32 and 16 × 16", "mspcaps_t_scale32_16")
T_CAR, T_DR = Side("T with CAR", "mspcaps_t"), Side("T with DR", "mspcaps_t_dr")
L_CAR, L_DR = Side("L with CAR", "mspcaps_l"), Side("L with DR", "mspcaps_l_dr")
T_SHARED, T_OWN = Side("T, shared", "mspcaps_t"), Side("T, own", "mspcaps_t_unshared")
L_OWN, L_SHARED = Side("L, own", "mspcaps_l"), Side("L, shared", "mspcaps_l_shared")
T_P4, T_P2, T_P3 = (Side(f"T, patches of {p}", f"mspcaps_t{s}") for p, s in ((4, ""), (2, "_p2"), (3, "_p3")))
L_P3, L_P4, L_P2 = (Side(f"L, patches of {p}", f"mspcaps_l{s}") for p, s in ((3, "_p3"), (4, ""), (2, "_p2")))
CAR = Side("cross-agreement, maximum", "mspcaps_t")
CLAIMS = (
    Claim(
        "Several scales help", "all three scales together are better than the best one alone and than the finer two",
        ((T_ALL, T_8), (T_ALL, T_FINE)), paper.SCALES,
    ),
    Claim(
        "Cross-agreement beats dynamic routing", "CAR is better than DR, with fewer parameters",
        ((T_CAR, T_DR), (L_CAR, L_DR)), paper.ROUTING,
    ),
    Claim(
        "Sharing helps T and hurts L", "vote weights that fine and coarse capsules share help T and hurt L",
        ((T_SHARED, T_OWN), (L_OWN, L_SHARED)), paper.SHARING,
    ),
    Claim(
        "The best patch is 4 for T, 3 for L", "patches of 4 are best for T, patches of 3 for L",
        ((T_P4, T_P2), (T_P4, T_P3), (L_P3, L_P4), (L_P3, L_P2)), paper.PATCHES,
    ),
    Claim(
        "What the routing itself is worth",
        "Not in the paper: MSPCaps-T against itself with the mean of the agreements in place of their maximum, with "
        "plain self-agreement of all votes, and with a linear layer on the patch averages and no capsules at all",
        (
            (CAR, Side("cross-agreement, mean", "mspcaps_t_mean")),
            (CAR, Side("self-agreement", "mspcaps_t_self")),
            (CAR, Side("linear head", "mspcaps_t_linear")),
        ),
    ),
)  # fmt: skip


def groups_of(runs: Sequence[Run]) -> dict[str, Group]:
    """Our runs on CIFAR-10 by the paper's recipe, by the name of their model."""
    found = {}
    groups = grouped([run for run in runs if not run.recipe["held_out"]])
    for side in {side for claim in CLAIMS for side in claim.sides}:
        name = f"paper/cifar10/{side.model}"
        recipe = load_recipe(name if name in list_recipes() else f"controls/{side.model}")
        group = next((g for g in groups if follows(g.first, recipe)), None)
        if group:
            found[side.model] = group
    return found


def standard_error(a: Group, b: Group) -> float | None:
    """Of the difference of two means; None where a side has a single run."""
    if a.last.deviation is None or b.last.deviation is None:
        return None
    return math.sqrt(a.last.deviation**2 / a.last.n + b.last.deviation**2 / b.last.n)


def verdict(better: Group, worse: Group) -> str:
    """What the runs say about one pair, in words."""
    gap, error = better.last.mean - worse.last.mean, standard_error(better, worse)
    if error is None:
        return ("points that way" if gap > 0 else "points the other way") + ", but one run tells nothing of the spread"
    if error == 0 or abs(gap) < CLEAR * error:
        return "too close to tell: the difference is within the spread of the seeds"
    return "holds" if gap > 0 else "does not hold: it is the other way round"


def sentences(claim: Claim, groups: Mapping[str, Group]) -> list[str]:
    """One per pair."""
    return [sentence(better, worse, claim, groups) for better, worse in claim.pairs]


def sentence(better: Side, worse: Side, claim: Claim, groups: Mapping[str, Group]) -> str:
    a, b = groups.get(better.model), groups.get(worse.model)
    head = f"{better.words[0].upper()}{better.words[1:]} against {worse.words}: "
    printed = [paper.figure_of(side.model, "cifar10") if claim.source else None for side in (better, worse)]
    said = ""
    if printed[0] and printed[1]:
        gap = printed[0].accuracy - printed[1].accuracy
        said = f"the paper has {printed[0].accuracy:.2f} and {printed[1].accuracy:.2f} ({signed(gap, 2)}); "
    if a is None or b is None:
        missing = [f"`{side.model}`" for side, group in ((better, a), (worse, b)) if group is None]
        return f"{head}{said}{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not trained yet."
    gap, error = a.last.mean - b.last.mean, standard_error(a, b)
    errors = f", {abs(gap) / error:.1f} standard errors" if error else ""
    parameters = (
        f" with {a.first.params:,} and {b.first.params:,} parameters" if a.first.params != b.first.params else ""
    )
    return (
        f"{head}{said}here it is {with_n(a.last)} and {with_n(b.last)}{parameters}, a difference of "
        f"{signed(gap, 2)}{errors}. **{verdict(a, b).capitalize()}.**"
    )


def lines(claim: Claim, groups: Mapping[str, Group]) -> list[Line]:
    """For the picture: every model with its runs and the paper's figure."""
    shown = []
    for side in claim.sides:
        group, figure = groups.get(side.model), paper.figure_of(side.model, "cifar10") if claim.source else None
        values = tuple(run.last for run in group.runs) if group else ()
        shown.append(Line(side.words, values, figure.accuracy if figure else None))
    return shown
