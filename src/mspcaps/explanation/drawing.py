"""Pictures of an explanation as inline SVG: the parts on the image, the heat map, the couplings.

The image itself is stored once in the page, as #picture; every drawing refers to it.
"""

from collections.abc import Sequence
from html import escape

import torch
from markupsafe import Markup
from torch import Tensor

from mspcaps.capsules import RoutingState
from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.tree import Node
from mspcaps.pages import image_url, png_url

KINDS = ("fine", "mid", "coarse")  # CSS classes of the scales
FAINT = 0.1  # what the effects of a map must add up to, at the strongest of them, to be drawn in full colour


def definitions(image: Tensor) -> Markup:
    """The image in colour and in grey, for all drawings of the page to use."""
    height, width = image.shape[1:]
    grey = image.mean(0, keepdim=True) * 0.55 + 0.12  # dim, so that a map stands out on it
    size = f'width="{width}" height="{height}" preserveAspectRatio="none"'
    picture, dim = (image_url((shown * 255).round().to(torch.uint8).numpy()) for shown in (image, grey))
    return Markup(
        '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
        f'<image id="picture" {size} href="{picture}"/><image id="grey" {size} href="{dim}"/>'
        "</defs></svg>"
    )


def kind_of(scale: int, scales: int) -> str:
    """The last scale is coarse, the first fine; what is between is mid."""
    return "coarse" if scale == scales - 1 else KINDS[min(scale, 1)]


def rectangle(rect: Rect, kind: str, width: float) -> str:
    """An outline inside the rectangle, with a dark one under it so that it shows on any image."""
    width = min(width, 0.4 * min(rect.right - rect.left, rect.bottom - rect.top))  # a patch of a large image is small
    inset = width / 2
    shape = (
        f'x="{rect.left + inset:g}" y="{rect.top + inset:g}" width="{rect.right - rect.left - width:g}" '
        f'height="{rect.bottom - rect.top - width:g}"'
    )
    return (
        f'<rect class="under" {shape} stroke-width="{1.7 * width:g}"/>'
        f'<rect class="part {kind}" {shape} stroke-width="{width:g}"/>'
    )


def parts_drawing(parts: Sequence[Node], size: tuple[int, int], scales: int) -> Markup:
    """The enlarged image with the strongest parts outlined."""
    height, width = size
    line = max(size) / 80
    outlines = []
    for node in parts:
        assert node.rect is not None and node.scale is not None
        kind = kind_of(node.scale, scales)
        outlines.append(rectangle(node.rect, kind, line * (1.5 if kind == "coarse" else 1.0)))
    return Markup(
        f'<svg class="big" viewBox="0 0 {width} {height}" role="img" aria-label="The image with its strongest parts">'
        f'<use href="#picture"/>{"".join(outlines)}</svg>'
    )


def ink(top: float, pixels: int) -> float:
    """The effect of a pixel that is drawn in full colour: the largest one, unless all of them are next to nothing."""
    return max(top, FAINT / pixels)


def heat_drawing(heat: Tensor, top: float, label: str) -> Markup:
    """[H, W] over the grey image: green speaks for the class, red against it; `top` is where the ink is full."""
    height, width = heat.shape
    share = (heat.abs() / ink(top, heat.numel())).clamp(0, 1).pow(0.7)  # small effects must still be seen
    colour = torch.where((heat >= 0).unsqueeze(-1), torch.tensor([40, 214, 178]), torch.tensor([255, 92, 56]))
    pixels = torch.cat([colour, (share * 215).round().unsqueeze(-1)], -1).to(torch.uint8)
    drawn = png_url(pixels.cpu().numpy())
    return Markup(
        f'<svg class="big" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}"><use href="#grey"/>'
        f'<image width="{width}" height="{height}" preserveAspectRatio="none" href="{drawn}"/></svg>'
    )


def couplings_drawing(state: RoutingState, image: int, j: int) -> Markup:
    """The couplings to output j of a block, the largest first, beside what each would be if all were equal."""
    values = state.couplings[:, image, j].sort(descending=True).values.tolist()
    uniform = 1 / state.couplings.shape[state.axis]
    width, height, top = 500, 120, max(*values, uniform)
    step = width / len(values)
    steps = "".join(f"V{height * (1 - value / top):.1f}h{step:.3f}" for value in values)
    level = height * (1 - uniform / top)
    label = f"{len(values)} couplings, the largest {values[0]:.3f}, {uniform:.3f} each if they were equal"
    return Markup(
        f'<svg class="couplings" viewBox="0 -8 {width} {height + 16}" role="img" aria-label="{label}">'
        f'<path class="area" d="M0 {height}{steps}V{height}Z"/>'
        f'<line class="equal" x1="0" x2="{width}" y1="{level:.1f}" y2="{level:.1f}"/></svg>'
    )
