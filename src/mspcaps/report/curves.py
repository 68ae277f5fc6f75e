"""Curves over the epochs, of one run or of all seeds in one chart, as inline SVG in the colours of the pages."""

import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from mspcaps.evaluation.health import LEAST_ENTROPY, MOST_TOP
from mspcaps.pages.charts import HEIGHT, Axes, inline, log_ticks, nice_ticks, number_words, percent_ticks
from mspcaps.report.runs import Group

EARLY = 0.08  # share of the epochs whose accuracies may lie below the chart: showing them would flatten the rest
MAX_DOTS = 40  # epochs whose points are marked, if there is a single run
HEALTH = {  # what it is, and on which side of which level a block has collapsed
    "entropy": ("entropy of the couplings, 1 if they are uniform", "below", LEAST_ENTROPY),
    "top": ("mean coupling of the most used capsule, as a multiple of the uniform one", "above", MOST_TOP),
}
Line = Sequence[float | None]  # one value per epoch, None where nothing was measured


def accuracy_chart(seeds: Sequence[Sequence[float]], label: str) -> Markup:
    """In percent."""
    later = [value for line in seeds for value in line[int(EARLY * len(line)) :]]
    return chart(seeds, percent_ticks(min(later), max(later)), label)


def loss_chart(seeds: Sequence[Sequence[float]], label: str) -> Markup:
    """On a logarithmic scale."""
    values = [[max(value, 1e-6) for value in line] for line in seeds]
    return chart(values, log_ticks(min(map(min, values)), max(map(max, values))), label, log=True)


def health_charts(group: Group) -> list[tuple[str, Markup]]:
    """(title, chart) for every routing block whose health was measured."""
    charts = []
    measured: list[Any] = [run.curve["health"] for run in group.runs if run.curve.get("health")]
    for block in dict.fromkeys(name for health in measured for name in health):
        for measure, (words, side, level) in HEALTH.items():
            seeds = [health[block][measure] for health in measured if block in health]
            values = [value for line in seeds for value in line if value is not None]
            ticks = nice_ticks(min([*values, level]), max([*values, level]))
            charts.append((f"{block}: {words}", chart(seeds, ticks, f"{measure} of {block}", False, level, side)))
    return charts


def tick_words(tick: float) -> str:
    """0.01, but 10⁻⁵ and 3·10⁻⁵."""
    if not 0 < tick < 1e-3:
        return f"{tick:g}"
    digits, _, exponent = f"{tick:.0e}".partition("e-")
    power = "10⁻" + f"{int(exponent)}".translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1" else f"{digits}·{power}"


def chart(
    seeds: Sequence[Line], ticks: Sequence[float], label: str, log: bool = False, level: float | None = None,
    side: str = "below",
) -> Markup:  # fmt: skip
    """A thin line per seed, a thick one for their mean, and a dashed one at `level`, on whose `side` a block has
    collapsed."""
    epochs = max(map(len, seeds))
    axes = Axes((0, epochs), ticks, log_y=log)
    x_words = number_words(tick for tick in nice_ticks(0, epochs) if tick.is_integer() and tick <= epochs)
    parts = axes.draw(tick_words, x_words)
    if level is not None:
        y = axes.y_at(level)
        parts.append(f'<line class="level" x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        y = min(y - 6 if y > HEIGHT / 2 else y + 16, axes.bottom)  # clear of both ends of the axis
        place = f'x="{axes.right}" y="{y:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {place}>collapsed {side} {level:g}</text>')

    several = len(seeds) > 1
    for values in seeds:
        points = visible_points(values, axes)
        parts.append(polyline("seed" if several else "curve", points))
        if not several and len(points) <= MAX_DOTS:
            parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>' for x, y in points]
    if several:
        parts.append(polyline("curve", visible_points(mean_line(seeds), axes)))
    return inline(label, parts)


def visible_points(values: Line, axes: Axes) -> list[tuple[float, float]]:
    """In pixels, from the first epoch inside the chart; later dips below it run along its lower edge."""
    lowest = axes.y_ticks[0]
    measured = [(epoch, value) for epoch, value in enumerate(values, start=1) if value is not None]
    begin = next((i for i, (_, value) in enumerate(measured) if value >= lowest), 0)
    return [(axes.x_at(epoch), axes.y_at(max(value, lowest))) for epoch, value in measured[begin:]]


def mean_line(seeds: Sequence[Line]) -> Line:
    columns = [[value for value in column if value is not None] for column in zip(*seeds, strict=False)]
    return [statistics.fmean(column) if column else None for column in columns]


def polyline(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
