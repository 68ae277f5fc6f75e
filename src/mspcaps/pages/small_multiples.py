"""Small multiples: many small panels with the same percentages upwards, each with a horizontal axis of its own.

A standalone SVG that follows light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLUMNS, WIDTH, HEIGHT = 4, 250, 210  # panels side by side; of one panel with its axes, in pixels
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 34, 44
KEY = 24  # height of a line of the key
COLOURS = (
    ("#2f6fd0", "#7fb0ff"), ("#c05a1c", "#ff9c5b"), ("#2e8b57", "#6fd19c"), ("#8a4fbf", "#c79bf2"),
    ("#b3304e", "#ff7f9c"), ("#7a6a1e", "#d9c65a"), ("#16828f", "#5fd0dd"), ("#6b6f78", "#9aa0ab"),
)  # fmt: skip
DASHES = ("none", "7 4", "2 3", "9 3 2 3")  # lines can be told apart without their colours


@dataclass(frozen=True)
class Panel:
    """Lines over the same few steps of an axis, which are spaced evenly, whatever they stand for."""

    title: str
    steps: Sequence[str]
    axis: str  # what the steps are
    lines: Mapping[str, Sequence[float]]  # percent at every step, by the name in the key


def small_multiples(panels: Sequence[Panel], label: str) -> str:
    """All panels, and one key for the lines of all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    columns = min(COLUMNS, len(panels))
    parts = []
    for number, panel in enumerate(panels):
        at = f"translate({number % columns * WIDTH} {number // columns * HEIGHT})"
        parts += [f'<g transform="{at}">', *_panel(panel, names), "</g>"]
    below = -(-len(panels) // columns) * HEIGHT
    across = max(1, columns * WIDTH // 330)  # room for a name
    for number, name in enumerate(names):
        x, y = LEFT + number % across * 330, below + 18 + number // across * KEY
        parts.append(f'<line class="line s{number % len(COLOURS)}" x1="{x}" x2="{x + 34}" y1="{y - 5}" y2="{y - 5}"/>')
        parts.append(f'<text class="faint" x="{x + 42}" y="{y}">{escape(name)}</text>')
    height = below + 10 + -(-len(names) // across) * KEY
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}"><style>{_style()}</style>{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, names: Sequence[str]) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(step: int, percent: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * step / max(1, len(panel.steps) - 1), bottom - (bottom - TOP) * percent / 100

    parts = [f'<text x="{(LEFT + right) / 2}" y="{TOP - 12}" text-anchor="middle">{escape(panel.title)}</text>']
    for percent in range(0, 101, 25):
        _, y = place(0, percent)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="faint" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>')
    for step, words in enumerate(panel.steps):
        x, _ = place(step, 0)
        parts.append(f'<text class="faint" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(words)}</text>')
    parts.append(f'<text class="faint" x="{right}" y="{bottom + 34}" text-anchor="end">{escape(panel.axis)}</text>')
    for name, values in panel.lines.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in enumerate(values)))
        told = ", ".join(f"{value:.1f}" for value in values)
        parts.append(
            f'<polyline class="line s{names.index(name) % len(COLOURS)}" points="{path}">'
            f"<title>{escape(name)}: {told}</title></polyline>"
        )
    return parts


def _style() -> str:
    light, dark = (" ".join(f".s{i} {{ stroke: {pair[mode]} }}" for i, pair in enumerate(COLOURS)) for mode in (0, 1))
    dashes = " ".join(f".s{i} {{ stroke-dasharray: {DASHES[i % len(DASHES)]} }}" for i in range(len(COLOURS)))
    return (
        "text { font: 14px system-ui, sans-serif; fill: #33363d } .faint { fill: #6b6f78; font-size: 11.5px } "
        f".grid {{ stroke: #dfe1e6 }} .line {{ fill: none; stroke-width: 2.2 }} {dashes} {light} "
        "@media (prefers-color-scheme: dark) { text { fill: #dcdfe6 } .faint { fill: #9aa0ab } "
        f".grid {{ stroke: #3a3e47 }} {dark} }}"
    )
