"""SVG charts for light and dark pages: inline ones, coloured by templates/design.css, and standalone files."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

Point = tuple[float, float]
WIDTH, HEIGHT = 520, 270  # of an inline chart
MAX_NAME = 24  # characters of a class beside a confusion matrix
STEPS = 5  # about this many from the first tick of an axis to the last


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, a handful of them."""
    if high - low < 1e-6:
        low, high = low - 1, high + 1
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / STEPS))
    step = next(s * power for s in (1, 2, 5, 10) if s * power * STEPS >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * k, 10) for k in range(first, last + 1)]


def percent_ticks(low: float, high: float) -> list[float]:
    """The same within 0 and 100, which equal values at either end would leave."""
    return [tick for tick in nice_ticks(low, high) if 0 <= tick <= 100]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 3, 10, 30, ... around two positive numbers; over more than three decades 1, 10, 100, ..."""
    steps = [m * 10.0**power for power in range(-9, 10) for m in ((1, 3) if high < 1000 * low else (1,))]
    first = max((i for i, t in enumerate(steps) if t <= low), default=0)
    last = min((i for i, t in enumerate(steps) if t >= high), default=len(steps) - 1)
    return steps[first : max(last, first + 1) + 1]


def position(value: float, ticks: Sequence[float], begin: float, end: float, log: bool = False) -> float:
    """In pixels, on an axis whose first tick is at `begin` and whose last one is at `end`."""
    scale = math.log if log else float
    low, high = scale(ticks[0]), scale(ticks[-1])
    return begin + (end - begin) * (scale(value) - low) / (high - low)


@dataclass(frozen=True)
class Axes:
    """A box in pixels; each scale runs from the first of its ticks to the last and may be logarithmic."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    log_x: bool = False
    log_y: bool = False
    left: int = 58
    right: int = WIDTH - 22
    top: int = 18
    bottom: int = HEIGHT - 42
    kind: str = "tick"  # CSS class of the text

    def x_at(self, x: float) -> float:
        return position(x, self.x_ticks, self.left, self.right, self.log_x)

    def y_at(self, y: float) -> float:
        return position(y, self.y_ticks, self.bottom, self.top, self.log_y)

    def draw(self, y_words: Callable[[float], str], x_words: Mapping[float, str], x_label: str = "epoch") -> list[str]:
        """A line and its words for every tick upwards; below, words at some places and the name of the x axis."""
        left, right, kind, parts = self.left, self.right, self.kind, []
        for tick in self.y_ticks:
            y = self.y_at(tick)
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            place = f'x="{left - 7}" y="{y + 4:.1f}" text-anchor="end"'
            parts.append(f'<text class="{kind}" {place}>{y_words(tick)}</text>')
        for x, words in x_words.items():
            place = f'x="{self.x_at(x):.1f}" y="{self.bottom + 17}"'
            parts.append(f'<text class="{kind}" {place} text-anchor="middle">{escape(words)}</text>')
        place = f'x="{right}" y="{self.bottom + 34}"'
        return [*parts, f'<text class="{kind}" {place} text-anchor="end">{escape(x_label)}</text>']


def inline(
    label: str, parts: Iterable[str], kind: str = "chart", width: float = WIDTH, height: float = HEIGHT
) -> Markup:
    """A drawing for a page; `kind` is its CSS class."""
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
    return Markup("".join([head, *parts, "</svg>"]))


def number_words(numbers: Iterable[float]) -> dict[float, str]:
    """Numbers as they stand below an axis."""
    return {number: f"{number:g}" for number in numbers}


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def bins_chart(values: Sequence[float], label: str, diagonal: bool = False) -> Markup:
    """A bar for every bin of confidence, from 0 to 100 percent; none for NaN. A perfectly calibrated model would follow
    the diagonal."""
    ticks = [0, 20, 40, 60, 80, 100] if diagonal else nice_ticks(0, max(values))
    axes = Axes((0, 100), ticks)
    parts = axes.draw(lambda tick: f"{tick:g}%", number_words(range(0, 101, 20)), "confidence, %")
    for number, value in enumerate(values):
        if math.isnan(value):
            continue
        low, high = 100 * number / len(values), 100 * (number + 1) / len(values)
        left, right, y = axes.x_at(low), axes.x_at(high), axes.y_at(value)
        title = f"confidence {low:.0f} to {high:.0f} %: {value:.1f} %"
        parts.append(
            f'<rect class="hit" x="{left + 1:.1f}" y="{y:.1f}" width="{right - left - 2:.1f}" '
            f'height="{axes.y_at(0) - y:.1f}" rx="2"><title>{title}</title></rect>'
        )
    if diagonal:
        ends = f'x1="{axes.x_at(0)}" x2="{axes.x_at(100)}" y1="{axes.y_at(0)}" y2="{axes.y_at(100)}"'
        parts.append(f'<line class="ideal" {ends}/>')
    return inline(label, parts)


def confusion_chart(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup:
    """Rows are the true classes, columns the answers; the opacity shows the share of the row."""
    cell = 46 if len(classes) <= 12 else max(14, 552 // len(classes))
    names = [shortened(name, MAX_NAME) for name in classes]
    longest = max(map(len, names))
    left, top = 24 + 8 * longest, 30 + 6 * longest
    side = cell * len(classes)
    width, height = left + side + 4 + 5 * len(names[-1]), top + side + 4
    parts = []
    for k, name in enumerate(names):
        middle = cell * k + cell / 2
        parts.append(
            f'<text class="name" x="{left - 10}" y="{top + middle + 4.5:.0f}" text-anchor="end">{escape(name)}</text>'
            f'<text class="name" transform="translate({left + middle + 3:.0f} {top - 10}) rotate(-45)">'
            f"{escape(name)}</text>"
        )
    for i, row in enumerate(confusion):
        for j, count in enumerate(row):
            share = count / max(1, sum(row))
            x, y, kind = left + cell * j, top + cell * i, "hit" if i == j else "miss"
            # the colour of mistakes deepens faster, so that a few in a hundred can be seen
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
    label = "Confusion matrix: rows are the true classes, columns the answers"
    return inline(label, parts, "confusion", width, height)


KEY, NAME, LETTER = 24, 330, 8  # height of a row of the legend, least width of a name in it, width of a letter
COLORS, DASHES = 8, 4
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #33363d } .faint { fill: #6b6f78; font-size: 12px }
.grid { stroke: #dfe1e6 } .line { fill: none; stroke-width: 2.3 }
.d1 { stroke-dasharray: 7 4 } .d2 { stroke-dasharray: 2 3 } .d3 { stroke-dasharray: 9 3 2 3 }
.c0 { stroke: #2f6fd0 } .c1 { stroke: #c05a1c } .c2 { stroke: #2e8b57 } .c3 { stroke: #8a4fbf } .c4 { stroke: #b3304e }
.c5 { stroke: #7a6a1e } .c6 { stroke: #16828f } .c7 { stroke: #6b6f78 }
@media (prefers-color-scheme: dark) {
text { fill: #dcdfe6 } .faint { fill: #9aa0ab } .grid { stroke: #3a3e47 }
.c0 { stroke: #7fb0ff } .c1 { stroke: #ff9c5b } .c2 { stroke: #6fd19c } .c3 { stroke: #c79bf2 } .c4 { stroke: #ff7f9c }
.c5 { stroke: #d9c65a } .c6 { stroke: #5fd0dd } .c7 { stroke: #9aa0ab }
}
"""


@dataclass(frozen=True)
class Curve:
    """A named line; without a colour it gets its own colour and dashes, so that lines differ without colours, too."""

    name: str
    points: Sequence[Point]
    color: int | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over one x axis: of numbers, or of named `steps`, evenly spaced at 0, 1, 2, ..."""

    title: str
    curves: Sequence[Curve]
    axis: str
    steps: Sequence[str] = ()


def standalone(width: int, height: int, label: str, style: str, parts: Iterable[str]) -> str:
    """The text of an SVG file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}"><style>{style}</style>{"".join(parts)}</svg>\n'
    )


def panels_chart(panels: Sequence[Panel], label: str, upwards: str = "") -> str:
    """A standalone SVG of percentages, at most four panels in a row. Axes of numbers have one scale; curves of one name
    share their look and their entry in the legend."""
    looks = choose_looks([curve for panel in panels for curve in panel.curves])
    numbers = [x for panel in panels if not panel.steps for curve in panel.curves for x, _ in curve.points]
    ticks = nice_ticks(0.0, max(numbers, default=1.0) or 1.0)
    columns = min(4, len(panels))
    width, height = (420, 310) if columns < 3 else (250, 210)
    parts = [f'<text class="faint" x="8" y="14">{escape(upwards)}</text>']
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x_words = {float(place): words for place, words in enumerate(panel.steps)} or number_words(ticks)
        parts.append(f'<g transform="translate({column * width} {row * height})">')
        parts += [*draw_panel(panel, x_words, looks, width, height), "</g>"]
    legend, bottom = draw_legend(looks, columns * width, math.ceil(len(panels) / columns) * height)
    return standalone(columns * width, bottom, label, STYLE, [*parts, *legend])


def choose_looks(curves: Sequence[Curve]) -> dict[str, str]:
    """Name -> CSS classes."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    looks = {}
    for curve in curves:
        color, dash = curve.color, int(curve.dashed)
        if color is None:
            color = names.index(curve.name)
            dash = color + color // COLORS
        looks[curve.name] = f"line c{color % COLORS} d{dash % DASHES}"
    return looks


def draw_legend(looks: Mapping[str, str], width: int, top: int) -> tuple[list[str], int]:
    """A line and its name for every look, in as many columns as fit -> the parts, and where they end."""
    room = max([NAME, *(60 + LETTER * len(name) for name in looks)])
    columns, longest = max(1, width // room), (width - 90) // LETTER
    parts = []
    for number, (name, look) in enumerate(looks.items()):
        row, column = divmod(number, columns)
        x, y = 40 + column * room, top + 18 + row * KEY
        parts.append(f'<line class="{look}" x1="{x}" x2="{x + 34}" y1="{y - 5}" y2="{y - 5}"/>')
        parts.append(f'<text class="faint" x="{x + 42}" y="{y}">{escape(shortened(name, longest))}</text>')
    return parts, top + 10 + math.ceil(len(looks) / columns) * KEY


def draw_panel(
    panel: Panel, x_words: Mapping[float, str], looks: Mapping[str, str], width: int, height: int
) -> list[str]:
    """Percentages upwards, from 0 to 100; the x axis ends at the last of its words."""
    ends = (0, max(x_words) or 1)
    axes = Axes(ends, range(0, 101, 25), left=42, right=width - 14, top=42, bottom=height - 44, kind="faint")
    middle = f'x="{(axes.left + axes.right) / 2:.0f}" y="{axes.top - 12}" text-anchor="middle"'
    parts = [f"<text {middle}>{escape(panel.title)}</text>", *axes.draw(str, x_words, panel.axis)]
    for curve in panel.curves:
        path = " ".join(f"{axes.x_at(x):.1f},{axes.y_at(y):.1f}" for x, y in curve.points)
        values = "; ".join(f"{x_words.get(x, f'{x:.3g}')}: {y:.2f}" for x, y in curve.points)
        title = f"<title>{escape(f'{curve.name}: {values}')}</title>"
        parts.append(f'<polyline class="{looks[curve.name]}" points="{path}">{title}</polyline>')
    return parts
