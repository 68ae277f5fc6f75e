"""The drawings of docs/ that `make regenerate` redraws, with every number taken from a model.

architecture.svg: MSPCaps-T for 32 x 32 images.
cross_agreement.svg: the first routing block of a shipped model at one place of one image, in numbers. Letters and
counting from 0 are those of capsules/routing/cross_agreement.py.
"""

from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np
import torch
from torch import Tensor

from mspcaps import create_model, load_dataset
from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.cross_agreement import group_fine
from mspcaps.pages import image_url
from mspcaps.pages.charts import standalone

# Chosen as an example: the place decides the first parent, is one of several for the second and next to nothing for
# the third, and different fine capsules agree best.
IMAGE, PLACE, PARENTS = 0, 6, (5, 1, 4)

TEMPLATES = Path(__file__).parent / "templates"
WIDTH, HEIGHT = 1080, 690
LEFT = (440, 650, 860)  # of the column of each parent
ROWS = (158, 202, 228, 254, 280)  # of the coarse capsule and the fine ones
STYLE = "\n" + (TEMPLATES / "cross_agreement.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Routed:
    """The routing at one place; j runs over the drawn parents only."""

    image: np.ndarray  # uint8 [c, h, w]
    grid: Grid  # of the places
    fine: Tensor  # capsules of the place [m, d]
    coarse: Tensor  # [d]
    fine_votes: Tensor  # [m, j, e]
    coarse_votes: Tensor  # [j, e]
    agreements: Tensor  # [m, j]
    best: Tensor  # of every place [k, j]
    couplings: Tensor  # of every place [k, j]
    parents: Tensor  # [j, e]


@torch.no_grad()
def routed() -> Routed:
    model = create_model("mspcaps_t", pretrained="fashionmnist").eval()
    image = load_dataset("fashionmnist_sample", "test").images[IMAGE : IMAGE + 1]
    u1, u2, _ = model.forward_features(image / 255)
    state, j = model.routing_state(image / 255)[0], list(PARENTS)
    assert state.grids is not None and state.fine_agreements is not None
    fine_votes, coarse_votes = state.votes
    return Routed(
        image=image[0].numpy(),
        grid=state.grids[1],
        fine=group_fine(u1, *state.grids)[0, PLACE],
        coarse=u2[0, PLACE],
        fine_votes=fine_votes[PLACE, 0][:, j],
        coarse_votes=coarse_votes[PLACE, 0, j],
        agreements=state.fine_agreements[PLACE, 0][:, j],
        best=state.agreements[:, 0, j],
        couplings=state.couplings[:, 0, j],
        parents=state.output[0, j],
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def number(value: Tensor, digits: int) -> str:
    return f"{value.item():.{digits}f}".replace("-", "−")


def step(x: float, y: float, digit: int, title: str, *lines: str) -> str:
    """A numbered heading and the lines below it."""
    badge = f'<circle class="step" cx="{x + 11}" cy="{y - 5}" r="11"/>' + text(x + 11, y, str(digit), "digit", "middle")
    words = [text(x + 30, y + 21 * (i + 1), line, "soft") for i, line in enumerate(lines)]
    return badge + text(x + 30, y, title, "bold") + "".join(words)


def cells(x: float, y: float, values: Tensor, columns: int, size: tuple[float, float], most: float) -> str:
    """Numbers as colours: blue above zero, orange below, fainter the nearer they are to it."""
    width, height = size
    return "".join(
        f'<path class="{"minus" if value < 0 else "plus"}" fill-opacity="{min(1.0, abs(value) / most):.2f}" '
        f'd="M{x + width * (i % columns):g},{y + height * (i // columns):g}h{width:g}v{height:g}h-{width:g}z"/>'
        for i, value in enumerate(values.tolist())
    )


def capsule(x: float, y: float, values: Tensor, most: float) -> str:
    return cells(x, y, values, len(values), (7.5, 16), most)


def frame(x: float, y: float, width: float, height: float, kind: str = "chosen") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="arrow" d="M{x1:g},{y1:g} L{x2:g},{y2:g}" marker-end="url(#tip)"/>'


def inside(image: np.ndarray, x: float, y: float, side: float) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"'
    return f'<image href="{image_url(image)}" {place} style="image-rendering: pixelated"/>'


def picture(block: Routed) -> str:
    """The image with its places, and the chosen place enlarged, with its fine capsules."""
    (rows, columns), (_, high, wide) = block.grid, block.image.shape
    row, column = divmod(PLACE, columns)
    x, y, side, size = 24, ROWS[0], 148, 148 / columns
    left, top = x + size * column, y + size * row  # of the place
    near, large, half = 196, 92, 46  # of the lens
    high, wide = high // rows, wide // columns
    cut = block.image[:, high * row : high * (row + 1), wide * column : wide * (column + 1)]
    lines = "".join(f"M{x + size * i:g},{y}v{side}M{x},{y + size * i:g}h{side}" for i in range(1, columns))
    rays = f"M{left + size:g},{top:g}L{near},{y}M{left + size:g},{top + size:g}L{near},{y + large}"
    parts = [
        inside(block.image, x, y, side),
        inside(cut, near, y, large),
        f'<path class="thin" d="{lines}M{near + half},{y}v{large}M{near},{y + half}h{large}"/>',
        f'<path class="lens" d="{rays}"/>',
        frame(left, top, size, size, "lens"),
        frame(near, y, large, large, "lens"),
        text(near + half, y + large + 21, f"place k = {PLACE}", "said", "middle"),
    ]
    for m in range(len(block.fine)):
        parts.append(text(near + half * (m % 2 + 0.5), y + half * (m // 2 + 0.5) + 5, str(m), "name", "middle"))
    return "".join(parts)


def votes(block: Routed) -> str:
    """A row for each capsule, a column for each parent, the agreements beside the fine votes and their maxima below."""
    most, widest = block.fine_votes.abs().max().item(), block.fine.abs().max().item()
    names = ["coarse", *(f"fine {m}" for m in range(len(block.fine)))]
    parts = []
    for y, name, u in zip(ROWS, names, [block.coarse, *block.fine], strict=True):
        parts += [text(350, y + 13, name, anchor="end"), capsule(360, y, u, widest)]
    for j, x in enumerate(LEFT):
        parts += [text(x, 146, f"parent j = {PARENTS[j]}", "bold"), capsule(x, ROWS[0], block.coarse_votes[j], most)]
        parts.append(text(x + 176, 192, "agreement", "soft", "end"))
        for m, y in enumerate(ROWS[1:]):
            parts.append(capsule(x, y, block.fine_votes[m, j], most))
            parts.append(text(x + 168, y + 13, number(block.agreements[m, j], 1), "agreement", "end"))
            if m == block.agreements[:, j].argmax():
                parts.append(frame(x + 134, y - 3, 42, 22))
        top = 348
        parts += [arrow(x + 155, ROWS[-1] + 22, x + 155, top - 4), text(x + 147, top - 16, "max", "bold", "end")]
        parts += [frame(x + 134, top, 42, 22)]
        parts.append(text(x + 168, top + 16, number(block.best[PLACE, j], 1), "best said", "end"))
    return "".join(parts)


def places(block: Routed, top: float) -> str:
    """The maxima of all places become couplings."""
    parts, columns, size = [], block.grid[1], 15
    row, column = divmod(PLACE, columns)
    for j, x in enumerate(LEFT):
        for left, values, name, value, most in (
            (x, block.best, "maxima", number(block.best[PLACE, j], 1), block.best.abs().max().item()),
            (x + 124, block.couplings, "couplings", number(block.couplings[PLACE, j], 2), block.couplings.max().item()),
        ):
            parts.append(text(left + 30, top - 9, name, "soft", "middle"))
            parts.append(cells(left, top, values[:, j], columns, (size, size), most))
            parts.append(frame(left + size * column, top + size * row, size, size))
            parts.append(text(left + 30, top + 81, value, f"{name} said", "middle"))
        parts += [arrow(x + 66, top + 37, x + 118, top + 37), text(x + 92, top + 28, "softmax", "small", "middle")]
    return "".join(parts)


def outputs(block: Routed, top: float) -> str:
    """What the place adds to each parent, and the parent itself."""
    parts, most, widest = [], block.fine_votes.abs().max().item(), block.parents.abs().max().item()
    for j, x in enumerate(LEFT):
        weight = block.couplings[PLACE, j]
        parts.append(text(x, top, f"{number(weight, 2)} × coarse vote", "said"))
        parts.append(capsule(x, top + 9, weight * block.coarse_votes[j], most))
        parts.append(text(x, top + 47, f"+ {len(block.best) - 1} other places, squash", "soft"))
        parts.append(capsule(x, top + 57, block.parents[j], widest))
        parts.append(text(x + 128, top + 70, f"parent {PARENTS[j]}", "bold"))
    return "".join(parts)


def draw_cross_agreement() -> str:
    block = routed()
    group, n, e = len(block.fine), len(block.best), block.parents.shape[-1]
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="14"/>',
        text(24, 38, "Cross-agreement routing in numbers", "title"),
        text(24, 61, "First routing of MSPCaps-T for FashionMNIST: one place of one image, a few parents.", "soft"),
        text(24, 80, "A square is a number: blue above zero, orange below, fainter the nearer it is to zero.", "soft"),
        *(f'<path class="rule" d="M24,{y}H{x}"/>' for y, x in ((94, 1056), (326, 416), (412, 1056), (554, 1056))),
        step(24, 121, 1, "One place at two scales", "coarse: all of it; fine: a quarter each"),
        step(LEFT[0], 121, 2, "Every capsule votes for every parent"),
        text(1056, 121, "vote = capsule × matrix of k and j", "soft", "end"),
        picture(block),
        votes(block),
        step(24, 355, 3, "The best of the group speaks for the place",
             f"agreement = fine vote · coarse vote / √{e}", f"max: over the {group} fine capsules of the place"),
        step(24, 443, 4, "The places compete for each parent",
             f"softmax: over the {n} places, each parent by itself;", f"the {n} couplings of a parent sum to 1"),
        places(block, 455),
        step(24, 585, 5, "The coupling weighs the coarse vote",
             f"the weighted votes of all {n} places are added up;", "squash makes the sum shorter than 1"),
        outputs(block, 585),
    ]  # fmt: skip
    return standalone(WIDTH, HEIGHT, "Cross-agreement routing in numbers", STYLE, parts)


def draw_architecture() -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    model = create_model("mspcaps_t")
    params = sum(p.numel() for p in model.parameters())
    return environment.get_template("architecture.svg.j2").render(model=model, params=params)
