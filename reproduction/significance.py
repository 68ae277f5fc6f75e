"""How much better one set of runs is than another, and how sure that is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mspcaps.report.runs import Spread
from reproduction.study_tables import NONE

CONFIDENCE = 0.95
ROUNDING = 1e-9  # points: 88.2 - 88.1 and 88.1 - 88.0 differ by less


@dataclass(frozen=True)
class Difference:
    """Of two means. The margin is half of Welch's interval, or None if both sides are single runs or nothing varies.

    A single run compared with several is assumed to spread like them: the margin is then Student's.
    """

    gap: float
    margin: float | None
    borrowed: bool = False  # whether one side is given the other's spread
    p_value: float | None = None  # of a gap at least this wide if there were no difference; None like the margin

    @classmethod
    def of(cls, a: Spread, b: Spread) -> "Difference":
        gap = a.mean - b.mean
        if a.deviation is None and b.deviation is None:
            return cls(gap, None)
        if a.deviation is None or b.deviation is None:
            deviation, n = a.deviation or b.deviation or 0.0, max(a.n, b.n)
            return cls.from_error(gap, deviation * math.sqrt(1 + 1 / n), n - 1, borrowed=True)
        v, w = a.deviation**2 / a.n, b.deviation**2 / b.n  # variances of the two means
        freedom = (v + w) ** 2 / (v**2 / (a.n - 1) + w**2 / (b.n - 1)) if v + w else 1.0
        return cls.from_error(gap, math.sqrt(v + w), freedom)

    @classmethod
    def pooled(cls, a: Spread, b: Spread, deviation: float, freedom: float) -> "Difference":
        """With one deviation for both sides, estimated from more runs than theirs."""
        return cls.from_error(a.mean - b.mean, deviation * math.sqrt(1 / a.n + 1 / b.n), freedom)

    @classmethod
    def from_error(cls, gap: float, error: float, freedom: float, borrowed: bool = False) -> "Difference":
        """By the standard error of the gap and its degrees of freedom; an error that only rounding makes is none."""
        if error < ROUNDING:
            return cls(gap, None)
        p_value = 1 - share(math.atan(abs(gap) / error / math.sqrt(freedom)), freedom)
        return cls(gap, quantile(freedom) * error, borrowed, p_value)

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero; not corrected for other comparisons."""
        return self.margin is not None and abs(self.gap) > self.margin

    @property
    def interval(self) -> str:
        """+0.13 to +1.60; empty without a margin."""
        if self.margin is None:
            return ""
        return f"{signed(self.gap - self.margin)} to {signed(self.gap + self.margin)}"

    @property
    def cell(self) -> str:
        """The interval as tables print it: in brackets if one side has the other's spread."""
        return f"({self.interval})" if self.borrowed else self.interval or NONE

    def __neg__(self) -> "Difference":
        return replace(self, gap=-self.gap)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """The mean difference over the seeds that both have, with Student's interval if there are two or more."""
    gaps = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if not gaps:
        return None
    spread = Spread.of(gaps)
    if spread.deviation is None:
        return Difference(spread.mean, None)
    return Difference.from_error(spread.mean, spread.deviation / spread.n**0.5, spread.n - 1)


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of n pairs with Fisher's interval; none for fewer than four pairs or for pairs on a line."""

    r: float
    n: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, x: Sequence[float], y: Sequence[float]) -> "Correlation | None":
        """None where there are fewer than three pairs or nothing varies."""
        if len(x) < 3 or min(len({*x}), len({*y})) < 2:
            return None
        r = max(-1.0, min(1.0, statistics.correlation(x, y)))
        if len(x) < 4 or abs(r) > 1 - 1e-12:
            return cls(r, len(x))
        z, margin = math.atanh(r), statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) / math.sqrt(len(x) - 3)
        return cls(r, len(x), math.tanh(z - margin), math.tanh(z + margin))

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    def __str__(self) -> str:
        """r = +0.50 (95 % CI +0.07 to +0.77, n = 20)"""
        interval = (
            "" if self.low is None or self.high is None else f"95 % CI {signed(self.low)} to {signed(self.high)}, "
        )
        return f"r = {signed(self.r)} ({interval}n = {self.n})"


def signed(value: float, digits: int = 2) -> str:
    """+0.10, −0.10, 0.00: with a real minus, and no sign on a zero."""
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def share(angle: float, freedom: float, steps: int = 200) -> float:
    """Share of Student's t distribution with |t| below sqrt(freedom) tan(angle), by Simpson's rule."""
    scale = 2 / math.sqrt(math.pi) * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    heights = [math.cos(angle * i / steps) ** (freedom - 1) for i in range(steps + 1)]
    area = (heights[0] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]) + heights[-1]) * angle / steps / 3
    return scale * area


@cache
def quantile(freedom: float) -> float:
    """The |t| that Student's t distribution exceeds with probability 1 - CONFIDENCE."""
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle, freedom) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several differences are significant after Holm's correction for their number."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    significant = [False] * len(p_values)
    for place, i in enumerate(order):
        if p_values[i] * (len(p_values) - place) > 1 - CONFIDENCE:
            break
        significant[i] = True
    return significant
