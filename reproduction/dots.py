"""Charts in which every run is a dot: models with their means and the paper's figures, and two measures against each
other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mspcaps.pages.charts import Axes, nice_ticks, position, standalone

HEIGHT, MARGIN = 400, 70  # of a scatter chart; to the left of its axes and below them
WIDTH, ROW, LEFT, RIGHT, TOP, AXIS, KEY = 750, 44, 240, 28, 14, 32, 26
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #33363d }
.faint { fill: #6b6f78; font-size: 13px }
.grid { stroke: #dfe1e6 }
.run { fill: #2f6fd0; fill-opacity: .65 }
.mean { stroke: #1d4c96; stroke-width: 3 }
.paper { fill: none; stroke: #c05a1c; stroke-width: 2 }
.other { fill: #c05a1c; fill-opacity: .65 }
@media (prefers-color-scheme: dark) {
text { fill: #dcdfe6 } .faint { fill: #9aa0ab } .grid { stroke: #3a3e47 }
.run { fill: #7fb0ff } .mean { stroke: #a9c9ff } .paper { stroke: #ff9c5b } .other { fill: #ff9c5b }
}
"""


@dataclass(frozen=True)
class Line:
    """One model: its name, the accuracies of its seeds in percent, their mean, and the paper's."""

    name: str
    runs: tuple[float, ...]
    mean: float | None = None
    paper: float | None = None


def dot_chart(panels: Sequence[Sequence[Line]], label: str) -> str:
    """A standalone SVG that follows light and dark; each panel has an axis of its own."""
    parts, top = [], TOP
    for rows in panels:
        parts += one_panel(rows, top)
        top += ROW * len(rows) + AXIS
    height = top + KEY
    parts += key(height - 12, paper=any(row.paper is not None for rows in panels for row in rows))
    return standalone(WIDTH, height, label, STYLE, parts)


def one_panel(rows: Sequence[Line], top: int) -> list[str]:
    values = [v for row in rows for v in (*row.runs, *([row.paper] if row.paper is not None else []))]
    ticks = nice_ticks(min(values), max(values)) if values else [0.0, 100.0]
    bottom = top + ROW * len(rows)

    def x_at(value: float) -> float:
        return position(value, ticks, LEFT, WIDTH - RIGHT)

    parts = []
    for tick in ticks:
        x = x_at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="faint" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for i, row in enumerate(rows):
        parts += one_row(row, top + ROW * (i + 0.5), x_at)
    return parts


def one_row(row: Line, y: float, x_at: Callable[[float], float]) -> list[str]:
    parts = [f'<text x="{LEFT - 14}" y="{y + 5:.1f}" text-anchor="end">{escape(row.name)}</text>']
    if not row.runs:  # beside the paper's mark, on the side where there is room
        at = LEFT if row.paper is None else x_at(row.paper)
        x, anchor = (at + 14, "start") if at < WIDTH - RIGHT - 120 else (at - 14, "end")
        parts.append(f'<text class="faint" x="{x:.1f}" y="{y + 5:.1f}" text-anchor="{anchor}">not trained yet</text>')
    for value in row.runs:
        parts.append(
            f'<circle class="run" cx="{x_at(value):.1f}" cy="{y:.1f}" r="5"><title>{value:.2f}</title></circle>'
        )
    if row.mean is not None:
        x = x_at(row.mean)
        parts.append(f'<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 12:.1f}" y2="{y + 12:.1f}"/>')
    if row.paper is not None:
        parts.append(diamond(x_at(row.paper), y, f"paper {row.paper:.2f}"))
    return parts


def diamond(x: float, y: float, title: str) -> str:
    points = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    return f'<polygon class="paper" points="{points}"><title>{escape(title)}</title></polygon>'


def key(y: float, paper: bool) -> list[str]:
    """What the marks mean."""
    parts = [
        f'<circle class="run" cx="{LEFT + 6}" cy="{y - 5}" r="5"/>',
        f'<text class="faint" x="{LEFT + 18}" y="{y}">a seed, last epoch</text>',
        f'<line class="mean" x1="{LEFT + 152}" x2="{LEFT + 152}" y1="{y - 14}" y2="{y + 4}"/>',
        f'<text class="faint" x="{LEFT + 162}" y="{y}">their mean{"" if paper else " (percent)"}</text>',
    ]
    if paper:
        parts.append(diamond(LEFT + 262, y - 5, "paper"))
        parts.append(f'<text class="faint" x="{LEFT + 276}" y="{y}">the paper, best epoch (percent)</text>')
    return parts


def draw_grid(axes: Axes, names: tuple[str, str], x_words: Callable[[float], str] = "{:g}".format) -> list[str]:
    """Lines and ticks in both directions, and the names of the axes; `x_words` formats the ticks of the x axis."""
    places, middle = map(axes.x_at, axes.x_ticks), (axes.top + axes.bottom) / 2
    ends = f'y1="{axes.top}" y2="{axes.bottom}"'
    rotated = f'x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18 {middle:.1f})"'
    return [
        *(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" {ends}/>' for x in places),
        *axes.draw("{:g}".format, {tick: x_words(tick) for tick in axes.x_ticks}, names[0]),
        f'<text class="faint" {rotated}>{escape(names[1])}</text>',
    ]


def scatter_chart(points: Mapping[str, Sequence[tuple[float, float]]], names: tuple[str, str], label: str) -> str:
    """A standalone SVG: the dots of the first name in one colour, all others in another; a dot's title is its name."""
    flat = [point for of_name in points.values() for point in of_name]
    xs, ys = (nice_ticks(min(p[i] for p in flat), max(p[i] for p in flat)) for i in (0, 1))
    axes = Axes(xs, ys, left=MARGIN, right=WIDTH - RIGHT, top=TOP, bottom=HEIGHT - MARGIN, kind="faint")
    parts = draw_grid(axes, names)
    for place, (name, of_name) in enumerate(points.items()):
        for x, y in of_name:
            title, mark = f"{escape(name)}: {x:.3f}, {y:.2f}", "other" if place else "run"
            at = f'cx="{axes.x_at(x):.1f}" cy="{axes.y_at(y):.1f}"'
            parts.append(f'<circle class="{mark}" {at} r="5"><title>{title}</title></circle>')
    key = [("run", next(iter(points)), MARGIN), ("other", "its variants", MARGIN + 120)]
    for mark, words, left in key[: len(points)]:
        parts.append(f'<circle class="{mark}" cx="{left + 6}" cy="{HEIGHT - 17}" r="5"/>')
        parts.append(f'<text class="faint" x="{left + 18}" y="{HEIGHT - 12}">{escape(words)}</text>')
    return standalone(WIDTH, HEIGHT, label, STYLE, parts)
