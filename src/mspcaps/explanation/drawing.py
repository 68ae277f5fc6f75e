"""Drawings of an explanation as inline SVG: the parts on the image, the heat map, the couplings.

The page stores the image once, as #picture, and all drawings refer to it.
"""

from collections.abc import Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from mspcaps.capsules import RoutingState
from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.tree import Node
from mspcaps.pages import image_url, png_url
from mspcaps.pages.charts import inline

KINDS = ("fine", "mid", "coarse")  # CSS classes of the scales
FAINT = 0.1  # a map in full colour everywhere adds up to at least this, so that weak effects stay pale
# From weak to strong: warm speaks for the class, cold against it. Stronger is darker, so that a map can be read without
# colours, and orange and blue differ even for those who confuse red with green.
WARM = ((255, 214, 90), (250, 140, 20), (200, 40, 10), (120, 10, 0))
COLD = ((150, 205, 255), (50, 130, 240), (20, 60, 190), (10, 20, 110))
OPACITY = 0.9  # of full colour: the picture stays visible


def float_image_url(image: Tensor) -> str:
    """[c, h, w] in [0, 1] -> a PNG as a data URL."""
    return image_url((image.detach().cpu() * 255).round().to(torch.uint8).numpy())


def pale_grey(image: Tensor) -> Tensor:
    """[c, h, w] -> [1, h, w]: a background on which the dark colours of a map stand out."""
    return image.mean(0, keepdim=True) * 0.6 + 0.4


def definitions(image: Tensor) -> Markup:
    """The image in colour and in grey, for all drawings of the page."""
    height, width = image.shape[1:]
    size = f'width="{width}" height="{height}" preserveAspectRatio="none"'
    return Markup(
        '<svg class="defs" width="0" height="0" aria-hidden="true"><defs>'
        f'<image id="picture" {size} href="{float_image_url(image)}"/>'
        f'<image id="grey" {size} href="{float_image_url(pale_grey(image))}"/></defs></svg>'
    )


def kind_of(scale: int, scales: int) -> str:
    """The last scale is coarse, the first fine, any other mid."""
    return "coarse" if scale == scales - 1 else KINDS[min(scale, 1)]


def rectangle(rect: Rect, kind: str, width: float) -> str:
    """An outline inside the rectangle, over a dark one that makes it visible on any image."""
    width = min(width, 0.4 * min(rect.right - rect.left, rect.bottom - rect.top))  # patches of a large image are small
    inset = width / 2
    shape = (
        f'x="{rect.left + inset:g}" y="{rect.top + inset:g}" width="{rect.right - rect.left - width:g}" '
        f'height="{rect.bottom - rect.top - width:g}"'
    )
    return (
        f'<rect class="under" {shape} stroke-width="{1.7 * width:g}"/>'
        f'<rect class="part {kind}" {shape} stroke-width="{width:g}"/>'
    )


def parts_drawing(nodes: Sequence[Node], size: tuple[int, int], scales: int) -> Markup:
    """The enlarged image with the strongest parts outlined."""
    height, width = size
    line = max(size) / 80
    outlines = []
    for node in nodes:
        assert node.rect is not None and node.scale is not None
        kind = kind_of(node.scale, scales)
        outlines.append(rectangle(node.rect, kind, line * (1.5 if kind == "coarse" else 1.0)))
    label = "The image with its strongest parts"
    return inline(label, ['<use href="#picture"/>', *outlines], "big", width, height)


def full_colour(largest: float, pixels: int) -> float:
    """The effect of a pixel in full colour: the largest of the map, unless all of them are negligible."""
    return max(largest, FAINT / pixels)


def gradient(colours: Sequence[tuple[int, int, int]], share: Tensor) -> Tensor:
    """[...] in [0, 1] -> [..., 3]: the colour at each share of the way from the first to the last."""
    stops, place = torch.tensor(colours, dtype=share.dtype), share * (len(colours) - 1)
    below = place.long().clamp(max=len(colours) - 2)
    return torch.lerp(stops[below], stops[below + 1], (place - below).unsqueeze(-1))


def heat_colours(share: Tensor) -> Tensor:
    """Effects [...] in [-1, 1], where 1 is full colour -> uint8 [..., 4]: red, green, blue, opacity."""
    strength = share.abs()
    colour = torch.where((share >= 0).unsqueeze(-1), gradient(WARM, strength), gradient(COLD, strength))
    opacity = 255 * OPACITY * strength.pow(0.8)  # small effects must remain visible
    return torch.cat([colour, opacity.unsqueeze(-1)], -1).round().to(torch.uint8)


def heat_drawing(heat: Tensor, largest: float, label: str) -> Markup:
    """[H, W] over the pale grey image; `largest` is the largest effect of all maps that share the scale."""
    height, width = heat.shape
    overlay = png_url(heat_colours((heat / full_colour(largest, heat.numel())).clamp(-1, 1)).cpu().numpy())
    size = f'width="{width}" height="{height}" preserveAspectRatio="none"'
    parts = ['<use href="#grey"/>', f'<image style="image-rendering:auto" {size} href="{overlay}"/>']
    return inline(label, parts, "big", width, height)


def colour_key() -> Markup:
    """All colours of a heat map, from the strongest against the class to the strongest for it."""
    colours = png_url(heat_colours(torch.linspace(-1, 1, 101)[None]).numpy())
    return Markup(f'<img class="colours" alt="" src="{colours}">')


def couplings_drawing(state: RoutingState, image: int, j: int) -> Markup:
    """The couplings to output j of a block, largest first, and a line at the value of equal couplings."""
    values = state.couplings[:, image, j].sort(descending=True).values.tolist()
    uniform = state.equal_coupling
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
