"""Charts as inline SVG, coloured by the classes of templates/design.css so that they follow light and dark."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 520, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 18, 42
STEPS = 5  # about so many from the first tick of an axis to the last


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, a handful of them."""
    if high - low < 1e-6:
        low, high = low - 1, high + 1
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / STEPS))
    step = next(s * power for s in (1, 2, 5, 10) if s * power * STEPS >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * k, 10) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 3, 10, 30, ... around two positive numbers; over more than three decades 1, 10, 100, ..."""
    steps = [m * 10.0**power for power in range(-9, 10) for m in ((1, 3) if high < 1000 * low else (1,))]
    first = max((i for i, t in enumerate(steps) if t <= low), default=0)
    last = min((i for i, t in enumerate(steps) if t >= high), default=len(steps) - 1)
    return steps[first : max(last, first + 1) + 1]


@dataclass(frozen=True)
class Axes:
    """Epochs to the right; upwards from the first tick to the last, on a linear or a logarithmic scale."""

    epochs: int
    ticks: Sequence[float]
    log: bool = False

    def x_at(self, epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * epoch / self.epochs

    def y_at(self, value: float) -> float:
        scale = math.log if self.log else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (scale(value) - low) / (high - low)

    def drawn(self, label: str, words: Callable[[float], str], marked: Iterable[float]) -> list[str]:
        """The beginning of a chart: a line and words for every tick, and the numbers of the epochs `marked`."""
        parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
        for tick in self.ticks:
            y = self.y_at(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 9}" y="{y + 4.5:.1f}" text-anchor="end">{words(tick)}</text>')
        for epoch in marked:
            x, y = self.x_at(epoch), HEIGHT - BOTTOM + 20
            parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{epoch:g}</text>')
        parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">epoch</text>')
        return parts


def line_chart(
    points: Sequence[Point], label: str, epochs: int, unit: str = "", dots: bool = False, log: bool = False
) -> str:
    """A curve over epochs, on a linear or a logarithmic scale."""
    values = [max(y, 1e-6) if log else y for _, y in points]
    axes = Axes(epochs, (log_ticks if log else nice_ticks)(min(values), max(values)), log)
    parts = axes.drawn(label, lambda tick: f"{tick:g}{unit}", range(0, epochs + 1, max(1, math.ceil(epochs / 8))))
    path = " ".join(f"{axes.x_at(x):.1f},{axes.y_at(y):.1f}" for (x, _), y in zip(points, values, strict=True))
    parts.append(f'<polyline class="curve" points="{path}"/>')
    if dots:
        parts += [f'<circle class="dot" cx="{axes.x_at(x):.1f}" cy="{axes.y_at(y):.1f}" r="4.5"/>' for x, y in points]
    return "".join([*parts, "</svg>"])


def confusion_chart(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Rows are the true classes, columns the answers; ink is the share of the row."""
    cell = 46 if len(classes) <= 12 else max(14, 552 // len(classes))
    longest = max(len(name) for name in classes)
    left, top = 24 + 8 * longest, 30 + 6 * longest
    side = cell * len(classes)
    width, height = left + side + 4 + 5 * len(classes[-1]), top + side + 4
    parts = [
        f'<svg class="confusion" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Confusion matrix: rows are the true classes, columns the answers">'
    ]
    for k, name in enumerate(classes):
        middle = cell * k + cell / 2
        parts.append(
            f'<text class="name" x="{left - 10}" y="{top + middle + 4.5:.0f}" text-anchor="end">{escape(name)}</text>'
            f'<text class="name" transform="translate({left + middle + 3:.0f} {top - 10}) rotate(-45)">'
            f"{escape(name)}</text>"
        )
    for i, row in enumerate(confusion):
        total = max(1, sum(row))
        for j, count in enumerate(row):
            share = count / total
            x, y, kind = left + cell * j, top + cell * i, "hit" if i == j else "miss"
            # a few mistakes among a hundred must still be seen: their ink rises faster
            ink = share if i == j else min(1.0, 0.12 + 2.2 * share) if count else 0.0
            title = f"{classes[i]} taken for {classes[j]}: {count} of {sum(row)}"
            parts.append(
                f'<g><title>{escape(title)}</title><rect class="empty" x="{x}" y="{y}" width="{cell - 2}" '
                f'height="{cell - 2}" rx="4"/><rect class="{kind}" x="{x}" y="{y}" width="{cell - 2}" '
                f'height="{cell - 2}" rx="4" fill-opacity="{ink:.3f}"/>'
            )
            if count and cell >= 24:
                strong = " strong" if ink > 0.55 else ""
                parts.append(
                    f'<text class="count{strong}" x="{x + cell / 2 - 1:.0f}" y="{y + cell / 2 + 4:.0f}" '
                    f'text-anchor="middle">{count}</text>'
                )
            parts.append("</g>")
    return "".join([*parts, "</svg>"])
