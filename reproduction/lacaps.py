"""The measured part of docs/lacaps.md: LaCaps beside the paper's networks and plain heads, trials, cost per pixel."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mspcaps.bench.tables import number, result_tables
from mspcaps.pages import markdown_table
from mspcaps.pages.charts import Axes, nice_ticks, standalone
from mspcaps.report.runs import Group, settings
from reproduction.baselines import Baselines
from reproduction.collapse import measured_runs
from reproduction.dots import MARGIN, RIGHT, STYLE, TOP, WIDTH, draw_grid
from reproduction.study_tables import NONE, drop_empty, with_n
from reproduction.tables import Report, changes, cost_of, recipe_settings

NETWORKS = {  # recipe -> its name in the table
    "paper/cifar10/mspcaps_t": "MSPCaps-T, the paper's recipe",
    "own/cifar10/mspcaps_t": "MSPCaps-T, ours",
    "own/cifar10/lacaps_t": "LaCaps-T",
    "own/cifar10/lacaps_t_average": "its backbone, mean and linear layer",
    "own/cifar10/lacaps_t_linear": "its backbone, linear layer on all patches",
    "controls/cifar10/resnet20": "ResNet-20, the paper's recipe",
    "paper/cifar10/mspcaps_l": "MSPCaps-L, the paper's recipe",
    "own/cifar10/mspcaps_l": "MSPCaps-L, ours",
    "own/cifar10/lacaps_l": "LaCaps-L",
    "controls/cifar10/resnet18": "ResNet-18, the paper's recipe",
}
TRIED = (*(name for name in NETWORKS if name.startswith("own/")), "fast/cifar10/mspcaps_t", "fast/cifar10/lacaps_t")
LINES = """
polyline { fill: none; stroke-width: 2.5 } .l0 { stroke: #2f6fd0 } .l1 { stroke: #c05a1c; stroke-dasharray: 8 4 }
.l2 { stroke: #2e8b57; stroke-dasharray: 2 4 } .l3 { stroke: #8a4fbf; stroke-dasharray: 10 3 2 3 }
@media (prefers-color-scheme: dark) {
.l0 { stroke: #7fb0ff } .l1 { stroke: #ff9c5b } .l2 { stroke: #6fd19c } .l3 { stroke: #c79bf2 } }
"""


def lacaps_values(report: Report, baselines: Baselines) -> dict[str, Any]:
    """What the template is filled with."""
    groups = {name: baselines.trained(name) for name in NETWORKS}
    pixels = [result for result in baselines.benchmarks if result["what"] == "pixels"]
    return {
        "networks": network_table(groups, baselines),
        "missing": [name for name, group in groups.items() if group is None],
        "trials": trial_table(report), "pixels": pixel_table(pixels), "pixel_chart": pixel_chart(pixels),
        "busy": [result["model"] for result in pixels if result["environment"]["busy"]],
    }  # fmt: skip


def network_table(groups: Mapping[str, Group | None], baselines: Baselines) -> str:
    heads = (
        "network", "last epoch", "best epoch", "parameters", "MMAC", "ms per step", "training", "lowest entropy",
        "lost with another finest scale",
    )  # fmt: skip
    on_gpu = any("CPU" not in result["environment"]["device"] for result in baselines.bench_results)
    speeds, rows = baselines.speeds if on_gpu else {}, []
    for name, group in groups.items():
        if group is not None:
            model = group.first.model
            cost, speed = cost_of(model), speeds.get(model)
            step = number(speed["train"]["ms_per_step"]["median"]) if speed else NONE
            rows.append((
                NETWORKS[name], with_n(group.last), str(group.best), f"{cost.params:,}",
                number(cost.macs / 1e6), step, group.training_time, *health_of(group),
            ))  # fmt: skip
    columns, rest = drop_empty(heads, rows)
    return markdown_table(columns, rest, range(1, len(columns))) if rows else ""


def health_of(group: Group) -> tuple[str, str]:
    """Means over the runs that recorded it: the lowest entropy of a block after the last epoch, and the points lost
    when the finest scale comes from another image."""
    runs = [run.blocks for run in measured_runs(group)]
    if not runs:
        return NONE, NONE
    entropy = statistics.fmean(min(block.entropy for block in blocks) for blocks in runs)
    lost = [next(iter(blocks[0].swapped.values())) for blocks in runs if blocks[0].swapped]
    return f"{entropy:.2f}", f"{statistics.fmean(lost):.1f}" if lost else NONE


def trial_table(report: Report) -> str:
    """Trials on held-out training images, the best of each recipe first."""
    rows = []
    for name in TRIED:
        recipe = recipe_settings(name)
        kind, _, model = name.split("/")
        trials = [g for g in report.trials if (g.first.model, g.first.dataset) == (model, recipe["data"])]
        for group in sorted(trials, key=lambda group: -group.last.mean):
            if group.first.name.partition("+")[0] == kind:
                change = changes(settings(group.first.recipe), recipe) or "none"
                rows.append((f"`{name}`", change, f"{group.first.epochs}", with_n(group.last)))
    return markdown_table(("recipe", "change", "epochs", "held-out accuracy"), rows, (2, 3)) if rows else ""


def pixel_table(results: Sequence[Mapping[str, Any]]) -> str:
    heads = ("model", "device", "image size", "ns per pixel", "relative", "bytes per pixel", "relative")
    rows = []
    for result in results:
        ((_, sizes),), _ = result_tables(result)
        for size, _, *costs in sizes[: len(result["sizes"])]:  # without those that do not fit into memory
            rows.append((f"`{result['model']}`", result["environment"]["device"], size, *costs))
    return markdown_table(heads, rows, range(2, len(heads))) if rows else ""


def pixel_chart(results: Sequence[Mapping[str, Any]]) -> str:
    """A standalone SVG: the time per pixel relative to the smallest size, a line for each measurement."""
    lines = {
        f"{r['model']}, {r['environment']['device']}": [(one["img_size"], one["relative_time"]) for one in r["sizes"]]
        for r in results
        if len(r["sizes"]) > 1
    }
    if not lines:
        return ""
    points = [point for line in lines.values() for point in line]
    sides = sorted({side for side, _ in points})
    ticks, height = nice_ticks(0.0, max(value for _, value in points)), 380 + 24 * len(lines)
    axes = Axes(sides, ticks, log_x=True, left=MARGIN, right=WIDTH - RIGHT, top=TOP, bottom=300, kind="faint")
    parts = draw_grid(axes, ("side of the images in pixels", "time per pixel, relative"))
    for i, (name, line) in enumerate(lines.items()):
        path = " ".join(f"{axes.x_at(side):.1f},{axes.y_at(value):.1f}" for side, value in line)
        title = escape(f"{name}: {'; '.join(f'{side}: {value:.2f}' for side, value in line)}")
        parts.append(f'<polyline class="l{i % 4}" points="{path}"><title>{title}</title></polyline>')
        y = 368 + 24 * i
        parts.append(f'<polyline class="l{i % 4}" points="{MARGIN},{y - 5} {MARGIN + 40},{y - 5}"/>')
        parts.append(f'<text class="faint" x="{MARGIN + 50}" y="{y}">{escape(name)}</text>')
    return standalone(WIDTH, height, "Time per pixel against the size of the images", STYLE + LINES, parts)
