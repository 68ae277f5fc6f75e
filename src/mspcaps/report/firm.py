"""How firm the verdicts on the conclusions are: corrected for their number, with one spread for all models, and beside
repeated runs, which should not differ at all."""

import math
from collections.abc import Mapping, Sequence

from mspcaps.report.conclusions import Comparison
from mspcaps.report.difference import Difference, still_clear
from mspcaps.report.runs import Group
from mspcaps.report.tables import in_brackets, signed

SIZE = "mspcaps_t"  # its models have several runs each


def firmness(pairs: Sequence[Comparison], again: Mapping[str, Group]) -> list[str]:
    """A sentence or two of each, as far as there are runs for it."""
    return [told for told in (corrected(pairs), alike(pairs), repeated(pairs, again)) if told]


def corrected(pairs: Sequence[Comparison]) -> str:
    judged = [(pair, found.chance) for pair in pairs if (found := pair.difference) and found.chance is not None]
    if not judged:
        return ""
    kept = still_clear([chance for _, chance in judged])
    return f"After correction for multiple comparisons (Holm), {left([pair for pair, _ in judged], kept)}."


def alike(pairs: Sequence[Comparison]) -> str:
    """Three seeds tell little about the spread of one model, but there are many models."""
    sides = [
        (pair, pair.a, pair.b)
        for pair in pairs
        if pair.a and pair.b and min(pair.a.last.n, pair.b.last.n) > 1 and of_size(pair.a) and of_size(pair.b)
    ]
    groups = {group.first.model: group.last for _, a, b in sides for group in (a, b)}
    freedom = sum(one.n - 1 for one in groups.values())
    squares = sum((one.n - 1) * one.deviation**2 for one in groups.values() if one.deviation)
    if len(groups) < 3 or not squares:
        return ""
    deviation = math.sqrt(squares / freedom)
    judged = [Difference.alike(a.last, b.last, deviation, freedom) for _, a, b in sides]
    kept = still_clear([found.chance for found in judged if found.chance is not None])
    return (
        f"A few seeds say little about a spread. Assuming the same spread for all {len(groups)} T models (pooled "
        f"standard deviation {deviation:.2f} points, {freedom} degrees of freedom), with the same correction, "
        f"{left([pair for pair, *_ in sides], kept)}."
    )


def of_size(group: Group) -> bool:
    return group.first.model.startswith(SIZE)


def left(pairs: Sequence[Comparison], kept: Sequence[bool]) -> str:
    named = [pair.words for pair, keep in zip(pairs, kept, strict=True) if keep]
    verb = "is" if len(named) == 1 else "are"
    return f"{len(named)} of {len(pairs)} differences {verb} significant" + (f": {'; '.join(named)}" if named else "")


def repeated(pairs: Sequence[Comparison], again: Mapping[str, Group]) -> str:
    """What the rule makes of differences that are none."""
    told: dict[str, str] = {}
    for side, group in (one for pair in pairs for one in ((pair.better, pair.a), (pair.worse, pair.b))):
        if group and side.model in again and side.model not in told:
            found = Difference.of(group.last, again[side.model].last)
            told[side.model] = f"{signed(found.gap, 2)}{in_brackets(found)} for {side.words}"
    if not told:
        return ""
    return (
        "Runs repeated with the same seeds differ only in the order in which the GPU adds. Mean of the originals minus "
        f"mean of the repeats: {'; '.join(told.values())}. An interval that barely excludes zero therefore proves "
        "little."
    )
