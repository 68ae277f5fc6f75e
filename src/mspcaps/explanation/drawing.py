"""Pictures of an explanation as inline SVG: the parts on the image, the heat map, capsule lengths.

The image itself is stored once in the page, as #picture; every drawing refers to it.
"""

from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor

from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.tree import Node
from mspcaps.pages import image_url, png_url

KINDS = ("fine", "mid", "coarse")  # CSS classes of the scales
MOST_BARS = 20
FAINT = 0.1  # what the effects of a map must add up to, at the strongest of them, to be drawn in full colour


def definitions(image: Tensor) -> str:
    """The image in colour and in grey, for all drawings of the page to use."""
    height, width = image.shape[1:]
    grey = image.mean(0, keepdim=True) * 0.55 + 0.12  # dim, so that a map stands out on it
    size = f'width="{width}" height="{height}" preserveAspectRatio="none"'
    picture, dim = (image_url((shown * 255).round().to(torch.uint8).numpy()) for shown in (image, grey))
    return (
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


def parts_drawing(parts: Sequence[Node], size: tuple[int, int], scales: int) -> str:
    """The enlarged image with the strongest parts outlined."""
    height, width = size
    line = max(size) / 80
    outlines = []
    for node in parts:
        assert node.rect is not None and node.scale is not None
        kind = kind_of(node.scale, scales)
        outlines.append(rectangle(node.rect, kind, line * (1.5 if kind == "coarse" else 1.0)))
    return (
        f'<svg class="big" viewBox="0 0 {width} {height}" role="img" aria-label="The image with its strongest parts">'
        f'<use href="#picture"/>{"".join(outlines)}</svg>'
    )


def ink(top: float, pixels: int) -> float:
    """The effect per pixel that is drawn in full colour: the largest one, unless all of them are next to nothing."""
    return max(top, FAINT / pixels)


def scale_words(top: float, pixels: int, cell: int) -> str:
    """What full colour stands for, in a unit of which one sees how large it is."""
    return f"full colour is an effect of {ink(top, pixels) * cell**2:.2g} on {cell} × {cell} pixels"


def heat_drawing(heat: Tensor, top: float, label: str) -> str:
    """[H, W] over the grey image: green speaks for the class, red against it; `top` is where the ink is full."""
    height, width = heat.shape
    share = (heat.abs() / ink(top, heat.numel())).clamp(0, 1).pow(0.7)  # small effects must still be seen
    colour = torch.where((heat >= 0).unsqueeze(-1), torch.tensor([40, 214, 178]), torch.tensor([255, 92, 56]))
    pixels = torch.cat([colour, (share * 215).round().unsqueeze(-1)], -1).to(torch.uint8)
    drawn = png_url(pixels.cpu().numpy())
    return (
        f'<svg class="big" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}"><use href="#grey"/>'
        f'<image width="{width}" height="{height}" preserveAspectRatio="none" href="{drawn}"/></svg>'
    )


def length_bars(lengths: Tensor, classes: Sequence[str], shown: Sequence[int]) -> str:
    """[K] -> a bar per class, the longest first; `shown` are the classes that the page is about."""
    order = lengths.argsort(descending=True).tolist()
    listed = order[:MOST_BARS] + [label for label in shown if label not in order[:MOST_BARS]]
    rows = []
    for label in listed:
        value = float(lengths[label])
        kind = ' class="true"' if label == order[0] else ' class="other"' if label in shown else ""
        rows.append(
            f'<dt{kind} title="{escape(classes[label])}">{escape(classes[label])}</dt><dd class="track"><i{kind} '
            f'style="width:{100 * min(max(value, 0.0), 1.0):.1f}%"></i></dd><dd>{value:.2f}</dd>'
        )
    more = len(order) - len(listed)
    rest = f'<p class="small">and {more} more, all shorter</p>' if more else ""
    return f'<dl class="lengths wide">{"".join(rows)}</dl>{rest}'
