"""Draws docs/architecture.svg: MSPCaps-T for 32 x 32 images, every number taken from the model itself.

`make regenerate` draws it again.
"""

from typing import Any

from mspcaps import create_model

INK, SOFT, GOOD, WARM, PAPER = "#1d2320", "#5d665f", "#0b6e5f", "#c2452d", "#faf8f4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
ROWS = (70, 190, 310)  # top of the three scales


def text(
    x: float, y: float, words: str, size: int = 14, fill: str = INK, anchor: str = "middle", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, title: str, detail: str, colour: str = INK) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="9" fill="#fff" stroke="{colour}"/>'
        + text(x + width / 2, y + height / 2 - 3, title, 14, colour, bold=True)
        + text(x + width / 2, y + height / 2 + 16, detail, 13, SOFT)
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    path = f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2 - 7},{y2}" if y1 != y2 else f"M{x1},{y1} L{x2 - 7},{y2}"
    return f'<path d="{path}" fill="none" stroke="{SOFT}" stroke-width="1.5" marker-end="url(#tip)"/>'


def dots(x: float, y: float, rows: int, columns: int, colour: str) -> str:
    """A grid of capsules."""
    step = min(8, 62 / max(rows, columns))
    left, top = x - step * (columns - 1) / 2, y - step * (rows - 1) / 2
    return "".join(
        f'<circle cx="{left + step * c:.1f}" cy="{top + step * r:.1f}" r="{step * 0.34:.1f}" fill="{colour}"/>'
        for r in range(rows)
        for c in range(columns)
    )


def draw() -> str:
    model: Any = create_model("mspcaps_t")
    params = sum(p.numel() for p in model.parameters())
    routing = list(model.routing)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1080 430" font-family="{FONT}">',
        f'<rect width="1080" height="430" rx="14" fill="{PAPER}"/>',
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{SOFT}"/></marker></defs>',
        text(30, 36, "MSPCaps-T", 19, INK, "start", True),
        text(152, 36, f"{params:,} parameters, images of 3 x 32 x 32, 10 classes", 14, SOFT, "start"),
        box(30, ROWS[0], 92, 70, "image", "3 x 32 x 32"),
    ]
    for i, (y, grid) in enumerate(zip(ROWS, model.grids, strict=True)):
        block, middle = model.backbone.blocks[i], y + 35
        width, side = block.first.conv.out_channels, 32 // 2**i
        parts.append(box(170, y, 150, 70, f"residual block {i + 1}", f"{width} x {side} x {side}"))
        parts.append(box(372, y, 130, 70, "PatchifyCaps", "4 x 4 patches"))
        dim = model.patchify[i].norm.normalized_shape[0]
        parts.append(dots(562, middle, grid[0], grid[1], GOOD))
        parts.append(text(562, y + 88, f"{grid[0] * grid[1]} capsules of {dim}", 13, SOFT))
        parts += [arrow(320, middle, 372, middle), arrow(502, middle, 528, middle)]
        if i:
            down = f"M245,{ROWS[i - 1] + 70} V{y - 7}"
            parts.append(f'<path d="{down}" stroke="{SOFT}" stroke-width="1.5" marker-end="url(#tip)"/>')
    parts.append(arrow(122, ROWS[0] + 35, 170, ROWS[0] + 35))
    parts += [
        box(660, 130, 150, 70, "cross-agreement", "routing 1", WARM),
        box(842, 222, 150, 70, "cross-agreement", "routing 2", WARM),
        arrow(596, ROWS[0] + 35, 660, 155), arrow(596, ROWS[1] + 35, 660, 178),
        arrow(810, 165, 842, 245), arrow(596, ROWS[2] + 35, 842, 270),
        text(838, 172, f"{routing[0].n_out} capsules of {routing[0].d_out}", 13, SOFT, "start"),
        dots(1040, 257, routing[1].n_out, 1, GOOD), arrow(992, 257, 1028, 257),
        text(1056, 322, f"{routing[1].n_out} class capsules of {routing[1].d_out},", 13, SOFT, "end"),
        text(1056, 340, "their lengths are the scores", 13, SOFT, "end"),
        "</svg>\n",
    ]  # fmt: skip
    return "".join(parts)
