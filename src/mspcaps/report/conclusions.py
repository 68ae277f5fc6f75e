"""Do the paper's conclusions hold here? Each as differences of our runs, judged against the spread of the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mspcaps.report import paper
from mspcaps.report.difference import Difference
from mspcaps.report.dots import Line
from mspcaps.report.runs import Group, Run, group_of, grouped
from mspcaps.report.tables import INTERVAL, NONE, between, in_brackets, signed, with_n
from mspcaps.training.recipe import list_recipes, load_recipe

HOLDS, IN_PART, NOT_SHOWN = "holds", "holds in part", "is not confirmed"
OF_SEVERAL = {HOLDS: "hold", IN_PART: "hold in part", NOT_SHOWN: "are not confirmed"}


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
    else_: str = ""  # for a question of our own: what follows if the first of the last pair is not clearly better

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
T_SHARED, T_OWN = Side("T, shared weights", "mspcaps_t"), Side("T, own weights", "mspcaps_t_unshared")
L_OWN, L_SHARED = Side("L, own weights", "mspcaps_l"), Side("L, shared weights", "mspcaps_l_shared")
T_P4, T_P2, T_P3 = (Side(f"T, patch size {p}", f"mspcaps_t{s}") for p, s in ((4, ""), (2, "_p2"), (3, "_p3")))
L_P3, L_P4, L_P2 = (Side(f"L, patch size {p}", f"mspcaps_l{s}") for p, s in ((3, "_p3"), (4, ""), (2, "_p2")))
CAR = Side("cross-agreement (maximum)", "mspcaps_t")
CLAIMS = (
    Claim(
        "Several scales help",
        "all three scales together are better than the best single scale and than the two finer ones",
        ((T_ALL, T_8), (T_ALL, T_FINE)), paper.SCALES,
    ),
    Claim(
        "Cross-agreement beats dynamic routing",
        "cross-agreement routing (CAR) is more accurate than dynamic routing (DR), with fewer parameters",
        ((T_CAR, T_DR), (L_CAR, L_DR)), paper.ROUTING,
    ),
    Claim(
        "Sharing helps T and hurts L", "sharing vote weights between fine and coarse capsules helps T and hurts L",
        ((T_SHARED, T_OWN), (L_OWN, L_SHARED)), paper.SHARING,
    ),
    Claim(
        "The best patch is 4 for T, 3 for L", "patch size 4 is best for T, 3 for L",
        ((T_P4, T_P2), (T_P4, T_P3), (L_P3, L_P4), (L_P3, L_P2)), paper.PATCHES,
    ),
    Claim(
        "What the routing itself is worth",
        "Not in the paper: MSPCaps-T compared with variants that use the mean of the agreements instead of their "
        "maximum, plain self-agreement of all votes, or no capsules at all but a linear layer on the patch averages, "
        "trained with the same margin loss or with cross-entropy. The linear layer sees all channels of every patch, "
        "where a capsule has 8 or 16 numbers, so it replaces capsules and routing together",
        (
            (CAR, Side("cross-agreement (mean)", "mspcaps_t_mean")),
            (CAR, Side("self-agreement", "mspcaps_t_self")),
            (CAR, Side("linear head (margin loss)", "mspcaps_t_linear_margin")),
            (CAR, Side("linear head (cross-entropy)", "mspcaps_t_linear")),
        ),
        else_="These runs do not show that routing is more accurate than a linear layer on the same backbone, so "
        "accuracy on CIFAR-10 is no argument for it. What routing adds is a tree of parts and votes that can be "
        "inspected; we measure [how far it can be trusted](explain.md).",
    ),
)  # fmt: skip


def groups_of(runs: Sequence[Run]) -> dict[str, Group]:
    """Our runs on CIFAR-10 by the paper's recipe, by the name of their model."""
    found = {}
    groups = grouped(runs)
    for side in {side for claim in CLAIMS for side in claim.sides}:
        name = f"paper/cifar10/{side.model}"
        recipe = load_recipe(name if name in list_recipes() else f"controls/{side.model}")
        if group := group_of(recipe, groups):
            found[side.model] = group
    return found


@dataclass(frozen=True)
class Comparison:
    """One pair of a claim with what the paper and our runs say."""

    claim: Claim
    better: Side  # as the claim has it
    worse: Side
    a: Group | None
    b: Group | None

    @property
    def words(self) -> str:
        return f"{self.better.words} vs. {self.worse.words}"

    @property
    def printed(self) -> tuple[float, float] | None:
        """The paper's two accuracies."""
        figures = [paper.figure_of(side.model, "cifar10") for side in (self.better, self.worse)]
        if self.claim.source is None or figures[0] is None or figures[1] is None:
            return None
        return figures[0].accuracy, figures[1].accuracy

    @property
    def difference(self) -> Difference | None:
        return Difference.of(self.a.last, self.b.last) if self.a and self.b else None

    @property
    def holds(self) -> bool:
        return self.difference is not None and self.difference.clear and self.difference.gap > 0

    @property
    def reversed(self) -> bool:
        """Whether what should be worse is clearly better."""
        return self.difference is not None and self.difference.clear and self.difference.gap < 0

    @property
    def smaller_than_printed(self) -> bool:
        """Whether the paper's difference lies above our interval."""
        found, printed = self.difference, self.printed
        if found is None or found.margin is None or printed is None:
            return False
        return printed[0] - printed[1] > found.gap + found.margin

    @property
    def verdict(self) -> str:
        """What the runs say, in words."""
        found = self.difference
        if found is None:
            missing = [f"`{side.model}`" for side, g in ((self.better, self.a), (self.worse, self.b)) if g is None]
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not trained yet"
        if found.margin is None:
            way = "agrees" if found.gap > 0 else "points the other way" if found.gap < 0 else "no difference"
            return f"{way}, but there is no spread to judge it by"
        if not found.clear:
            return "inconclusive"
        if self.claim.source is None:
            return f"{(self.better if self.holds else self.worse).words} is better"
        return "does not hold; the opposite does" if self.reversed else HOLDS

    @property
    def interval(self) -> str:
        """In brackets where it rests on a guess."""
        found = self.difference
        if found is None or found.margin is None:
            return NONE
        return f"({between(found)})" if found.borrowed else between(found)

    @property
    def cells(self) -> tuple[str, ...]:
        """For one table of all: what is compared, the paper's difference, ours, its interval, the verdict."""
        printed, found = self.printed, self.difference
        return (
            self.words,
            signed(printed[0] - printed[1], 2) if printed else NONE,
            signed(found.gap, 2) if found else NONE,
            self.interval,
            self.verdict,
        )

    def __str__(self) -> str:
        text = f"{capitalized(self.words)}: "
        if self.printed:
            first, second = self.printed
            text += f"{first:.2f} and {second:.2f} in the paper ({signed(first - second, 2)}); "
        found = self.difference
        if found is None or self.a is None or self.b is None:
            return f"{text}{self.verdict}."
        parameters = ""
        if self.a.first.params != self.b.first.params:
            parameters = f", with {self.a.first.params:,} and {self.b.first.params:,} parameters"
        return (
            f"{text}{with_n(self.a.last)} and {with_n(self.b.last)} here, a difference of {signed(found.gap, 2)}"
            f"{in_brackets(found)}{parameters}. **{capitalized(self.verdict)}.**"
        )


def comparisons(claim: Claim, groups: Mapping[str, Group]) -> list[Comparison]:
    """One per pair."""
    return [Comparison(claim, a, b, groups.get(a.model), groups.get(b.model)) for a, b in claim.pairs]


def as_a_whole(claim: Claim, pairs: Sequence[Comparison]) -> str:
    """What follows from all comparisons of a claim together; empty while runs are missing."""
    if claim.source is None:
        return what_follows(claim, pairs)
    whole, held = verdict_on(pairs), sum(pair.holds for pair in pairs)
    if not whole:
        return ""
    because = {
        HOLDS: "",
        IN_PART: f", in {held} of {len(pairs)} comparisons",
        NOT_SHOWN: ": no difference in its favour stands out from the spread over seeds",
    }
    said = [f"**Overall, the conclusion {whole}**{because[whole]}."]
    if turned := sum(pair.reversed for pair in pairs):
        said.append(f"In {turned} of {len(pairs)} comparisons the opposite clearly holds.")
    if smaller := "; ".join(pair.words for pair in pairs if pair.smaller_than_printed):
        said.append(
            f"The paper's difference lies above our {INTERVAL}, so that any effect is smaller here, in: {smaller}."
        )
    return " ".join(said)


def verdict_on(pairs: Sequence[Comparison]) -> str:
    """On a claim of the paper; empty while runs are missing."""
    if any(pair.difference is None for pair in pairs):
        return ""
    held = sum(pair.holds for pair in pairs)
    return HOLDS if held == len(pairs) else IN_PART if held else NOT_SHOWN


def in_short(groups: Mapping[str, Group]) -> str:
    """All claims in a few sentences; empty while none of the paper's is trained whole."""
    compared = {claim: comparisons(claim, groups) for claim in CLAIMS}
    judged = {claim: verdict_on(pairs) for claim, pairs in compared.items() if claim.source}
    said = []
    for verdict, of_several in OF_SEVERAL.items():
        if titles := [f"“{claim.title}”" for claim, found in judged.items() if found == verdict]:
            said.append(f"{' and '.join(titles)} {of_several if titles[1:] else verdict}")
    if not said:
        return ""
    text = f"The paper's conclusions from its ablations, judged by our runs: {'; '.join(said)}."
    text += beside_printed([pair for pairs in compared.values() for pair in pairs])
    if better := surpassing([pair for claim, pairs in compared.items() if not claim.source for pair in pairs]):
        text += f" Clearly more accurate than the routing on the same backbone: {better}."
    return text


def beside_printed(pairs: Sequence[Comparison]) -> str:
    """How many of the paper's differences are smaller here, or turned round; both of best epochs."""
    gaps = [(p.a.best.mean - p.b.best.mean, p.printed[0] - p.printed[1]) for p in pairs if p.a and p.b and p.printed]
    smaller = sum(here < printed for here, printed in gaps)
    many = f"all {smaller}" if smaller == len(gaps) else f"{smaller} of the {len(gaps)}"
    said = f"Comparing best epochs, as the paper does, {many} differences behind these are smaller here or reversed."
    return f" {said}" if smaller else ""


def what_follows(claim: Claim, pairs: Sequence[Comparison]) -> str:
    """For a question of our own: what is clearly better than the paper's way, and what to make of it."""
    last, better = pairs[-1], surpassing(pairs)
    said = [f"Clearly more accurate than {last.better.words}: {better}."] if better else []
    if last.difference and not last.holds:
        said.append(claim.else_)
    return " ".join(said)


def surpassing(pairs: Sequence[Comparison]) -> str:
    """What is clearly better though it should be worse."""
    return " and ".join(
        f"{pair.worse.words}, by {abs(found.gap):.2f} points ({INTERVAL} {between(replace(found, gap=-found.gap))})"
        for pair in pairs
        if pair.reversed and (found := pair.difference)
    )


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def panels(claim: Claim, groups: Mapping[str, Group]) -> list[list[Line]]:
    """For the picture: every model with its runs and the paper's figure, T and L apart."""
    shown: dict[str, list[Line]] = {}
    for side in claim.sides:
        group, figure = groups.get(side.model), paper.figure_of(side.model, "cifar10") if claim.source else None
        values = tuple(run.last for run in group.runs) if group else ()
        size = side.model.split("_")[1]
        shown.setdefault(size, []).append(Line(side.words, values, figure.accuracy if figure else None))
    return list(shown.values())
