"""Charts as SVG that follow light and dark: inline, coloured by templates/design.css, and one that stands alone."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 520, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 18, 42
MAX_NAME = 24  # characters of a class beside a confusion matrix
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

    def drawn(
        self, label: str, words: Callable[[float], str], marked: Iterable[float], along: str = "epoch"
    ) -> list[str]:
        """The beginning of a chart: a line and words for every tick, and the numbers of the epochs `marked`."""
        parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
        for tick in self.ticks:
            y = self.y_at(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 9}" y="{y + 4.5:.1f}" text-anchor="end">{words(tick)}</text>')
        for epoch in marked:
            x, y = self.x_at(epoch), HEIGHT - BOTTOM + 20
            parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{epoch:g}</text>')
        parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{along}</text>')
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


def bins_chart(values: Sequence[float], label: str, diagonal: bool = False) -> str:
    """A bar for every bin of the confidence, from 0 to 100 percent; NaN is no bar. On the diagonal a model would be
    exactly as sure as it is right."""
    percents = [value for value in values if value == value]
    ticks = [0, 20, 40, 60, 80, 100] if diagonal else nice_ticks(0, max(percents))
    axes = Axes(100, ticks)
    parts = axes.drawn(label, lambda tick: f"{tick:g}%", range(0, 101, 20), "confidence, %")
    for place, value in enumerate(values):
        if value == value:
            low, high = (100 * edge / len(values) for edge in (place, place + 1))
            left, right, y = axes.x_at(low), axes.x_at(high), axes.y_at(value)
            told = f"confidence {low:.0f} to {high:.0f} %: {value:.1f} %"
            parts.append(
                f'<rect class="hit" x="{left + 1:.1f}" y="{y:.1f}" width="{right - left - 2:.1f}" '
                f'height="{axes.y_at(0) - y:.1f}" rx="2"><title>{told}</title></rect>'
            )
    if diagonal:
        ends = f'x1="{axes.x_at(0)}" x2="{axes.x_at(100)}" y1="{axes.y_at(0)}" y2="{axes.y_at(100)}"'
        parts.append(f'<line class="ideal" {ends}/>')
    return "".join([*parts, "</svg>"])


def confusion_chart(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Rows are the true classes, columns the answers; ink is the share of the row."""
    cell = 46 if len(classes) <= 12 else max(14, 552 // len(classes))
    names = [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in classes]
    longest = max(map(len, names))
    left, top = 24 + 8 * longest, 30 + 6 * longest
    side = cell * len(classes)
    width, height = left + side + 4 + 5 * len(names[-1]), top + side + 4
    parts = [
        f'<svg class="confusion" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Confusion matrix: rows are the true classes, columns the answers">'
    ]
    for k, name in enumerate(names):
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


PANEL = 420  # width of one panel with its axis
KEY = 24  # height of a line of the key
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #33363d } .faint { fill: #6b6f78; font-size: 13px }
.grid { stroke: #dfe1e6 } .line { fill: none; stroke-width: 2.5 } .dashed { stroke-dasharray: 6 4 }
.c0 { stroke: #2f6fd0 } .c1 { stroke: #c05a1c } .c2 { stroke: #2e8b57 } .c3 { stroke: #8a4fbf } .c4 { stroke: #b3304e }
.c5 { stroke: #7a6a1e } .c6 { stroke: #16828f } .c7 { stroke: #6b6f78 }
@media (prefers-color-scheme: dark) {
text { fill: #dcdfe6 } .faint { fill: #9aa0ab } .grid { stroke: #3a3e47 }
.c0 { stroke: #7fb0ff } .c1 { stroke: #ff9c5b } .c2 { stroke: #6fd19c } .c3 { stroke: #c79bf2 } .c4 { stroke: #ff7f9c }
.c5 { stroke: #d9c65a } .c6 { stroke: #5fd0dd } .c7 { stroke: #9aa0ab }
}
"""
COLORS = 8


@dataclass(frozen=True)
class Curve:
    """A named line; without a colour it gets one of its own."""

    name: str
    points: Sequence[Point]
    color: int | None = None
    dashed: bool = False


def panels_chart(panels: Mapping[str, Sequence[Curve]], label: str, x_label: str, y_label: str) -> str:
    """A standalone SVG of percentages: panels side by side, by title, on one scale; lines of one name share colour and
    key."""
    flat = [curve for curves in panels.values() for curve in curves]
    names = list(dict.fromkeys(curve.name for curve in flat))
    looks = {
        curve.name: f"line c{(names.index(curve.name) if curve.color is None else curve.color) % COLORS}"
        f"{' dashed' if curve.dashed else ''}"
        for curve in flat
    }
    right = max((x for curve in flat for x, _ in curve.points), default=1.0) or 1.0
    parts = []
    for place, (title, curves) in enumerate(panels.items()):
        parts += one_panel(title, curves, looks, place * PANEL, nice_ticks(0.0, right), x_label)
    parts.append(f'<text class="faint" x="8" y="18">{escape(y_label)}</text>')
    columns = max(1, len(panels) * PANEL // 400)
    for place, name in enumerate(names):
        x, y = 24 + place % columns * 400, HEIGHT + 58 + place // columns * KEY
        parts.append(f'<line class="{looks[name]}" x1="{x}" x2="{x + 34}" y1="{y - 5}" y2="{y - 5}"/>')
        parts.append(f'<text class="faint" x="{x + 42}" y="{y}">{escape(name)}</text>')
    height = HEIGHT + 58 + -(-len(names) // columns) * KEY
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PANEL * len(panels)} {height}" role="img" '
        f'aria-label="{escape(label)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def one_panel(
    title: str, curves: Sequence[Curve], looks: Mapping[str, str], offset: int, ticks: Sequence[float], x_label: str
) -> list[str]:
    """Percentages upwards, from 0 to 100."""
    left, right, top, bottom = offset + 46, offset + PANEL - 16, 44, HEIGHT - 6

    def place(x: float, y: float) -> Point:
        return left + (right - left) * x / ticks[-1], bottom - (bottom - top) * y / 100

    parts = [f'<text x="{(left + right) / 2:.0f}" y="34" text-anchor="middle">{escape(title)}</text>']
    for percent in range(0, 101, 20):
        _, y = place(0, percent)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="faint" x="{left - 8}" y="{y + 4.5:.1f}" text-anchor="end">{percent}</text>')
    for tick in ticks:
        x, _ = place(tick, 0)
        parts.append(f'<text class="faint" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text class="faint" x="{right}" y="{bottom + 35}" text-anchor="end">{escape(x_label)}</text>')
    for curve in curves:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        told = "; ".join(f"{x:.3g}: {y:.2f}" for x, y in curve.points)
        title = f"<title>{escape(f'{curve.name}: {told}')}</title>"
        parts.append(f'<polyline class="{looks[curve.name]}" points="{path}">{title}</polyline>')
    return parts
