"""What a notebook shows of an explanation: pictures, answers and, once they are worked out, heat maps."""

from html import escape

import torch

from mspcaps.explanation.analysis import Explanation
from mspcaps.explanation.drawing import heat_drawing
from mspcaps.pages import image_url

MAX_SHOWN, SIDE, TOP = 8, 112, 3  # pictures, pixels of the longer side, classes of each
CARD = "display:inline-block;vertical-align:top;margin:0 18px 14px 0"


def explanation_html(found: Explanation) -> str:
    """Self-contained. Effects take seconds for a picture, so they are drawn only where they have been asked for."""
    known = "all_effects" in vars(found)
    cards = "".join(card(found, i, known) for i in range(min(len(found.images), MAX_SHOWN)))
    notes = [] if known else ["heat_map(label) works out where each class is seen; then it is drawn here, too"]
    if len(found.images) > MAX_SHOWN:
        notes.insert(0, f"and {len(found.images) - MAX_SHOWN:,} more")
    return f'{cards}<div style="opacity:.7">{escape("; ".join(notes))}</div>' if notes else cards


def card(found: Explanation, i: int, known: bool) -> str:
    """One picture with its likeliest classes."""
    image = found.images[i].detach().cpu()
    height, width = (round(SIDE * side / max(image.shape[1:])) for side in image.shape[1:])
    size = f"width:{width}px;height:{height}px"
    best = found.ranking[i, :TOP].tolist()
    shown = picture(image, size)
    if known:
        heat = found.heat_map(best[0])[i].cpu()
        drawn = heat_drawing(heat, float(heat.abs().max()), f"Heat map of {found.classes[best[0]]}")
        grey = picture(image.mean(0, keepdim=True) * 0.55 + 0.12, size)
        over = f'<div style="position:absolute;inset:0">{drawn}</div>'
        shown += f'<div style="display:inline-block;position:relative;margin-left:6px;{size}">{grey}{over}</div>'
    answers = "".join(f"<div>{escape(found.classes[k])} {found.presence[i, k]:.2f}</div>" for k in best)
    return f'<div style="{CARD}">{shown}{answers}</div>'


def picture(image: torch.Tensor, size: str) -> str:
    """[c, h, w] in [0, 1]"""
    url = image_url((image * 255).round().to(torch.uint8).numpy())
    return f'<img alt="" src="{url}" style="{size};image-rendering:pixelated">'
