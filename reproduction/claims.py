"""Do the paper's conclusions hold here? Each is a set of differences, judged by the spread over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mspcaps.report.runs import Group, Spread, machine
from reproduction import paper
from reproduction.dots import Line
from reproduction.significance import Correlation, Difference, holm, paired

SEEDS = 10  # fixed before they were trained, for these:
PLANNED = ("mspcaps_t", "mspcaps_t_scale8", "mspcaps_t_dr", "mspcaps_t_unshared", "mspcaps_t_p2", "mspcaps_t_self",
           "mspcaps_t_linear_margin")  # fmt: skip
FIRST_SEEDS = range(3)  # of all models of T's size
COMMON = 5  # seeds: fewer say little about a correlation
POOLED = "mspcaps_t"  # models of this size have several runs each, enough to estimate one spread for all


@dataclass(frozen=True, eq=False)
class Claim:
    """Which models are claimed to be better than which."""

    title: str
    says: str
    pairs: tuple[tuple[str, str], ...]  # of models, the better one first
    words: Mapping[str, str]  # for each model
    table: int = 0  # of the paper; 0: a question of our own
    untested: bool = False  # whether the paper says it without a table

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().replace(",", "").split())

    @property
    def source(self) -> paper.PaperTable | None:
        return next((table for table in paper.TABLES if table.number == self.table), None)


CLAIMS = tuple(
    Claim(**values | {"pairs": tuple(map(tuple, values["pairs"]))})
    for values in paper.read_toml("claims.toml")["claims"]
)


@dataclass(frozen=True)
class Comparison:
    """One pair of a claim with what the paper and our runs say."""

    claim: Claim
    models: tuple[str, str]  # better and worse, as the claim has it
    a: Group | None
    b: Group | None
    corrected: bool | None = None  # whether it is significant after Holm's correction; None: it cannot be judged

    @property
    def better(self) -> str:
        return self.claim.words[self.models[0]]

    @property
    def worse(self) -> str:
        return self.claim.words[self.models[1]]

    @property
    def words(self) -> str:
        return f"{self.better} vs. {self.worse}"

    @property
    def missing(self) -> list[str]:
        """Models that are not trained yet."""
        return [model for model, group in zip(self.models, (self.a, self.b), strict=True) if group is None]

    @property
    def printed(self) -> tuple[float, float] | None:
        """The paper's two accuracies."""
        first, second = (paper.figure_of(model, "cifar10") for model in self.models)
        return (first.accuracy, second.accuracy) if self.claim.table and first and second else None

    @property
    def difference(self) -> Difference | None:
        return Difference.of(self.a.last, self.b.last) if self.a and self.b else None

    @property
    def holds(self) -> bool:
        return self.difference is not None and self.difference.clear and self.difference.gap > 0

    @property
    def reversed(self) -> bool:
        """Whether the model claimed to be worse is clearly better."""
        return self.difference is not None and self.difference.clear and self.difference.gap < 0

    @property
    def smaller_than_printed(self) -> bool:
        """Whether the paper's difference lies above our interval."""
        ours, printed = self.difference, self.printed
        if ours is None or ours.margin is None or printed is None:
            return False
        return printed[0] - printed[1] > ours.gap + ours.margin

    @property
    def verdict(self) -> str:
        """In a few words; a clear difference also says whether it survives the correction."""
        difference = self.difference
        if difference is None:
            return "not trained yet"
        if difference.margin is None:
            way = "agrees" if difference.gap > 0 else "points the other way" if difference.gap < 0 else "no difference"
            return f"{way}, but there is no spread to judge it by"
        if not difference.clear:
            return "inconclusive"
        if self.claim.table:
            words = "holds" if self.holds else "does not hold, the opposite does"
        else:
            words = f"{self.better if self.holds else self.worse} is better"
        return f"{words} ({'Holm' if self.corrected else 'uncorrected'})"


def compare(groups: Mapping[str, Group]) -> dict[Claim, list[Comparison]]:
    """Every pair of every claim. `groups` are the runs on CIFAR-10 by the paper's recipe, by model."""
    pairs = [
        Comparison(claim, models, groups.get(models[0]), groups.get(models[1]))
        for claim in CLAIMS
        for models in claim.pairs
    ]
    p_values = {i: d.p_value for i, pair in enumerate(pairs) if (d := pair.difference) and d.p_value is not None}
    for i, significant in zip(p_values, holm([*p_values.values()]), strict=True):
        pairs[i] = replace(pairs[i], corrected=significant)
    return {claim: [pair for pair in pairs if pair.claim is claim] for claim in CLAIMS}


def first_seeds(groups: Mapping[str, Group]) -> dict[str, Group]:
    """The same groups with the first runs of the first seeds only: repeats came later."""
    firsts = {model: tuple(run for run in group.runs if run.seed in FIRST_SEEDS) for model, group in groups.items()}
    return {model: Group(runs) for model, runs in firsts.items() if runs}


def verdict_on(pairs: Sequence[Comparison]) -> str:
    """On a claim as a whole, by its uncorrected intervals; empty while runs are missing or none has an interval."""
    differences = [pair.difference for pair in pairs]
    if None in differences or not any(d and d.interval for d in differences):
        return ""
    held = sum(pair.holds for pair in pairs)
    return "holds" if held == len(pairs) else "holds in part" if held else "is not confirmed"


def smaller_gaps(pairs: Sequence[Comparison]) -> tuple[int, int]:
    """How many of the paper's differences are smaller here or reversed, and of how many; both by best epochs."""
    gaps = [(p.a.best.mean - p.b.best.mean, p.printed[0] - p.printed[1]) for p in pairs if p.a and p.b and p.printed]
    return sum(here < printed for here, printed in gaps), len(gaps)


@dataclass(frozen=True)
class Pooled:
    """The comparisons of models of one size, with one spread for all."""

    models: int
    deviation: float
    ends: tuple[float, float]  # the lowest and the highest deviation of a single model
    freedom: int
    pairs: tuple[Comparison, ...]
    significant: tuple[bool, ...]  # after Holm's correction


def pool(pairs: Sequence[Comparison]) -> Pooled | None:
    """A few seeds say little about the spread of one model, but there are many models."""
    sides = [
        (pair, pair.a.last, pair.b.last)
        for pair in pairs
        if pair.a and pair.b and min(pair.a.last.n, pair.b.last.n) > 1 and pair.models[0].startswith(POOLED)
    ]
    spreads = {model: spread for pair, a, b in sides for model, spread in zip(pair.models, (a, b), strict=True)}
    freedom = sum(spread.n - 1 for spread in spreads.values())
    deviations = [spread.deviation or 0.0 for spread in spreads.values()]
    squares = sum((spread.n - 1) * own**2 for spread, own in zip(spreads.values(), deviations, strict=True))
    if len(spreads) < 3 or not squares:
        return None
    deviation = math.sqrt(squares / freedom)
    differences = [Difference.pooled(a, b, deviation, freedom) for _, a, b in sides]
    significant = holm([d.p_value for d in differences if d.p_value is not None])
    ends = min(deviations), max(deviations)
    return Pooled(len(spreads), deviation, ends, freedom, tuple(pair for pair, *_ in sides), tuple(significant))


def repeat_differences(groups: Mapping[str, Group]) -> dict[str, Difference]:
    """Of models with repeats: first runs minus repeats of the same seeds on the same kind of machine, which should not
    differ at all."""
    found = {}
    for model, group in groups.items():
        kinds = {run.seed: machine(run) for run in group.runs}
        alike = Group(tuple(run for run in group.repeats if machine(run) == kinds.get(run.seed)))
        if difference := paired(Group(group.runs).by_seed("last"), alike.by_seed("last")):
            found[model] = difference
    return found


def seed_correlations(pairs: Sequence[Comparison]) -> list[float]:
    """How far the accuracies of one seed go together, of every comparison with at least five seeds in common: near 0,
    pairing them would gain nothing."""
    both = [(pair.a.by_seed("last"), pair.b.by_seed("last")) for pair in pairs if pair.a and pair.b]
    common = [[(a[seed], b[seed]) for seed in a if seed in b] for a, b in both]
    found = [Correlation.of(*zip(*values, strict=True)) for values in common if len(values) >= COMMON]
    return [one.r for one in found if one]


def later_seeds(groups: Mapping[str, Group]) -> list[tuple[str, Spread, Spread, Difference]]:
    """Of models with more than the first three seeds: those three, the later ones, and their difference."""
    rows = []
    for model, group in groups.items():
        by_seed = group.by_seed("last")
        first, later = ([v for seed, v in by_seed.items() if (seed in FIRST_SEEDS) == which] for which in (True, False))
        if later and first:
            a, b = Spread.of(first), Spread.of(later)
            rows.append((model, a, b, Difference.of(a, b)))
    return rows


def panels(claim: Claim, groups: Mapping[str, Group]) -> list[list[Line]]:
    """For the chart: every model with its seeds and the paper's figure, a panel each for T and L."""
    lines: dict[str, list[Line]] = {}
    for model in dict.fromkeys(model for pair in claim.pairs for model in pair):
        group, figure = groups.get(model), paper.figure_of(model, "cifar10") if claim.table else None
        values = tuple(group.seeds("last")) if group else ()
        line = Line(claim.words[model], values, group.last.mean if group else None, figure.accuracy if figure else None)
        lines.setdefault(model.split("_")[1], []).append(line)
    return list(lines.values())
