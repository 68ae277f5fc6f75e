"""A chart of networks: accuracy against cost on a logarithmic scale, with a label at every mark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mspcaps.pages.charts import Axes, log_ticks, nice_ticks, standalone
from reproduction.dots import MARGIN, RIGHT, STYLE, TOP, diamond, draw_grid

WIDTH, HEIGHT, BOTTOM = 860, 540, 92
LETTER, LINE, RADIUS = 8.4, 17.0, 6.0  # of a wide font: width of a letter, height of a label; of a mark
MORE_STYLE = """
.label { font-size: 14px }
.control { fill: #4b8b3b; fill-opacity: .8 }
.link { stroke: #9aa0ab; stroke-width: 1.2; stroke-dasharray: 3 3 }
.lead { stroke: #9aa0ab; stroke-width: 1 }
@media (prefers-color-scheme: dark) { .control { fill: #8fd07c } .link, .lead { stroke: #737985 } }
"""
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Mark:
    """One network: its cost, our accuracy and the paper's, in percent; either may be missing, but not both."""

    name: str
    x: float
    ours: float | None
    paper: float | None = None
    control: bool = False  # no capsules


def anchor(mark: Mark, axes: Axes) -> tuple[float, float]:
    """The mark to label: ours, or the paper's if there is no run."""
    value = mark.ours if mark.ours is not None else mark.paper
    assert value is not None, f"{mark.name} has no accuracy"
    return axes.x_at(mark.x), axes.y_at(value)


def short(value: float) -> str:
    """300K, 10M, 1,000"""
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}K" if value >= 1e4 else f"{value:,g}"


def tradeoff_chart(marks: Sequence[Mark], names: tuple[str, str], label: str) -> str:
    """A standalone SVG that follows light and dark: filled marks are ours, hollow ones the paper's."""
    costs = [mark.x for mark in marks]
    values = [value for mark in marks for value in (mark.ours, mark.paper) if value is not None]
    ticks = log_ticks(min(costs), max(costs)), nice_ticks(min(values), max(values))
    axes = Axes(*ticks, log_x=True, left=MARGIN, right=WIDTH - RIGHT, top=TOP, bottom=HEIGHT - BOTTOM, kind="faint")
    boxes = place_labels(marks, axes)
    parts = draw_grid(axes, names, short)
    for mark in marks:
        parts += links(mark, axes, boxes[mark.name])
    for mark in marks:
        parts += one_mark(mark, axes)
    for mark in marks:
        parts.append(one_label(mark.name, boxes[mark.name], axes.x_at(mark.x)))
    parts += key(marks)
    return standalone(WIDTH, HEIGHT, label, STYLE + MORE_STYLE, parts)


def one_mark(mark: Mark, axes: Axes) -> list[str]:
    parts, x = [], axes.x_at(mark.x)
    if mark.paper is not None:
        parts.append(diamond(x, axes.y_at(mark.paper), f"{mark.name}, the paper: {mark.paper:.2f}"))
    if mark.ours is not None:
        title = f"<title>{escape(mark.name)}: {mark.ours:.2f}, {short(float(f'{mark.x:.3g}'))}</title>"
        parts.append(shape(x, axes.y_at(mark.ours), mark.control, title))
    return parts


def one_label(name: str, box: Box, x: float) -> str:
    """Fixed at the side of the mark, whatever the width of the reader's font."""
    side = "start" if box[0] > x else "end" if box[2] < x else "middle"
    at = {"start": box[0], "end": box[2], "middle": (box[0] + box[2]) / 2}[side]
    return f'<text class="label" x="{at:.1f}" y="{box[3] - 4:.1f}" text-anchor="{side}">{escape(name)}</text>'


def shape(x: float, y: float, control: bool, title: str = "") -> str:
    """A square for what has no capsules, a disc for the rest: colour alone does not tell them apart."""
    if control:
        side = 2 * RADIUS - 1
        at = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side}" height="{side}"'
        return f'<rect class="control" {at}>{title}</rect>'
    return f'<circle class="run" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}">{title}</circle>'


def links(mark: Mark, axes: Axes, box: Box) -> list[str]:
    """A line between our figure and the paper's, and one from a label to a mark that it does not touch."""
    x, y = anchor(mark, axes)
    parts = []
    if mark.ours is not None and mark.paper is not None:
        other = axes.y_at(mark.paper)
        parts.append(f'<line class="link" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{other:.1f}"/>')
    near_x, near_y = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
    if math.hypot(near_x - x, near_y - y) > 2 * RADIUS:
        parts.append(f'<line class="lead" x1="{x:.1f}" y1="{y:.1f}" x2="{near_x:.1f}" y2="{near_y:.1f}"/>')
    return parts


def place_labels(marks: Sequence[Mark], axes: Axes) -> dict[str, Box]:
    """A box for every label: the nearest place beside its mark that is inside the chart and still free."""
    taken = [covered(mark, axes) for mark in marks]
    boxes: dict[str, Box] = {}
    for mark in marks:
        places = candidates(mark, axes)
        free = (box for box in places if is_inside(box) and not any(overlap(box, other) for other in taken))
        boxes[mark.name] = next(free, places[0])
        taken.append(boxes[mark.name])
    return boxes


def candidates(mark: Mark, axes: Axes) -> list[Box]:
    """Places for a label, the nearest first: right, left, above, below and the corners, then the same further away."""
    x, y = anchor(mark, axes)
    width, places = LETTER * len(mark.name), []
    for distance in (RADIUS + 3, RADIUS + 14, RADIUS + 28, RADIUS + 46):
        for right, down in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)):
            middle = x + right * (distance + width / 2)
            centre = y + down * (distance + LINE / 2)
            places.append((middle - width / 2, centre - LINE / 2, middle + width / 2, centre + LINE / 2))
    return places


def is_inside(box: Box) -> bool:
    return box[0] >= MARGIN and box[1] >= 2 and box[2] <= WIDTH - RIGHT and box[3] <= HEIGHT - BOTTOM


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def covered(mark: Mark, axes: Axes) -> Box:
    """By our mark, the paper's and the line between them."""
    x, heights = axes.x_at(mark.x), [axes.y_at(value) for value in (mark.ours, mark.paper) if value is not None]
    return x - RADIUS - 1, min(heights) - RADIUS - 1, x + RADIUS + 1, max(heights) + RADIUS + 1


def key(marks: Sequence[Mark]) -> list[str]:
    """What the marks mean; only those that occur."""
    x, y, parts = float(MARGIN), HEIGHT - 14, []
    kinds = [
        (any(m.ours is not None and not m.control for m in marks), shape(0, 0, False), "capsules, last epoch"),
        (any(m.control for m in marks), shape(0, 0, True), "no capsules, last epoch"),
        (any(m.paper is not None for m in marks), diamond(0, 0, "the paper"), "printed in the paper, best epoch"),
    ]
    for occurs, mark, words in kinds:
        if occurs:
            parts.append(f'<g transform="translate({x + 7:.1f} {y - 5})">{mark}</g>')
            parts.append(f'<text class="faint" x="{x + 20:.1f}" y="{y}">{words}</text>')
            x += 44 + 7 * len(words)
    return parts
