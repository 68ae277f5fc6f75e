"""What a notebook shows of an explanation: pictures, answers and, once they are computed, heat maps."""

from html import escape

import torch

from mspcaps.explanation.analysis import Explanation
from mspcaps.explanation.drawing import float_image_url, heat_drawing, pale_grey

MAX_SHOWN, SIDE, TOP = 8, 112, 3  # pictures, pixels of the longer side, classes of each
CARD = "display:inline-block;vertical-align:top;margin:0 18px 14px 0"


def explanation_html(explanation: Explanation) -> str:
    """Self-contained. Effects take seconds per picture, so heat maps are drawn only once they have been asked for."""
    with_heat = "all_effects" in vars(explanation)
    images = len(explanation.images)
    cards = "".join(card(explanation, i, with_heat) for i in range(min(images, MAX_SHOWN)))
    notes = [f"and {images - MAX_SHOWN:,} more"] if images > MAX_SHOWN else []
    notes += [] if with_heat else ["call heat_map(label) to compute where each class is seen, and to see it here"]
    return f'{cards}<div style="opacity:.7">{escape("; ".join(notes))}</div>' if notes else cards


def card(explanation: Explanation, i: int, with_heat: bool) -> str:
    """One picture with its likeliest classes."""
    image = explanation.images[i]
    height, width = (round(SIDE * side / max(image.shape[1:])) for side in image.shape[1:])
    size = f"width:{width}px;height:{height}px"
    best = explanation.ranking[i, :TOP].tolist()
    html = picture(image, size)
    if with_heat:
        heat = explanation.drawn_map(best[0])[i].cpu()
        drawing = heat_drawing(heat, float(heat.abs().max()), f"Heat map of {explanation.classes[best[0]]}")
        overlay = f'{picture(pale_grey(image), size)}<div style="position:absolute;inset:0">{drawing}</div>'
        html += f'<div style="display:inline-block;position:relative;margin-left:6px;{size}">{overlay}</div>'
    answers = "".join(f"<div>{escape(explanation.classes[k])} {explanation.presence[i, k]:.2f}</div>" for k in best)
    return f'<div style="{CARD}">{html}{answers}</div>'


def picture(image: torch.Tensor, size: str) -> str:
    """[c, h, w] in [0, 1]"""
    return f'<img alt="" src="{float_image_url(image)}" style="{size};image-rendering:pixelated">'
