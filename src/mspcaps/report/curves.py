"""Learning curves of several seeds in one chart, as inline SVG in the colours of design.css and results.css."""

import statistics
from collections.abc import Sequence

from mspcaps.pages.charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axes, log_ticks, nice_ticks

EARLY = 0.08  # share of the epochs whose accuracies may lie below the picture: they would flatten all the rest


def loss_chart(seeds: Sequence[Sequence[float]], label: str) -> str:
    """Loss per epoch on a logarithmic scale, one thin line per seed and a strong one for their mean."""
    values = [[max(value, 1e-6) for value in line] for line in seeds]
    ticks = log_ticks(min(map(min, values)), max(map(max, values)))
    return chart(values, ticks, label, log=True)


def accuracy_chart(seeds: Sequence[Sequence[float]], label: str, paper: float | None = None) -> str:
    """Accuracy per epoch in percent; a broken line is the paper's figure."""
    later = [value for line in seeds for value in line[int(EARLY * len(line)) :]]
    marks = [*later, paper] if paper is not None else later
    return chart(seeds, nice_ticks(min(marks), max(marks)), label, level=paper)


def tick_words(tick: float) -> str:
    """0.01, but 10⁻⁵ and 3·10⁻⁵."""
    if not 0 < tick < 1e-3:
        return f"{tick:g}"
    digits, _, exponent = f"{tick:.0e}".partition("e-")
    power = "10⁻" + f"{int(exponent)}".translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1" else f"{digits}·{power}"


def chart(
    seeds: Sequence[Sequence[float]], ticks: Sequence[float], label: str, log: bool = False, level: float | None = None
) -> str:
    epochs = max(map(len, seeds))
    axes = Axes(epochs, ticks, log)

    def line(values: Sequence[float], kind: str) -> str:
        """From the first epoch that is in the picture on; a later dip below it runs along its edge."""
        begin = next((i for i, value in enumerate(values) if value >= ticks[0]), 0)
        shown = [(axes.x_at(i + 1), axes.y_at(max(v, ticks[0]))) for i, v in enumerate(values) if i >= begin]
        return f'<polyline class="{kind}" points="{" ".join(f"{x:.4g},{y:.4g}" for x, y in shown)}"/>'

    marked = [tick for tick in nice_ticks(0, epochs) if tick.is_integer() and tick <= epochs]
    parts = axes.drawn(label, tick_words, marked)
    if level is not None:
        y = axes.y_at(level)
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        key, low_right = HEIGHT - BOTTOM - 14, WIDTH - RIGHT - 6  # no rising curve comes there
        parts.append(f'<line class="level" x1="{low_right - 112}" x2="{low_right - 88}" y1="{key}" y2="{key}"/>')
        parts.append(f'<text class="tick" x="{low_right}" y="{key + 4.5}" text-anchor="end">paper {level:.2f}</text>')
    several = len(seeds) > 1
    parts += [line(values, "seed" if several else "curve") for values in seeds]
    if several:
        parts.append(line([statistics.fmean(column) for column in zip(*seeds, strict=False)], "curve"))
    return "".join([*parts, "</svg>"])
