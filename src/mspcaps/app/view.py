"""What an answer looks like: pieces of HTML in the style of our pages, drawn by what draws explanations."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torch import Tensor

from mspcaps.explanation.drawing import definitions, heat_drawing, kind_of, length_bars, parts_drawing, scale_words
from mspcaps.explanation.explanation import Explanation
from mspcaps.explanation.page import SHEET, TREE_NOTE, closeness
from mspcaps.explanation.tree import Node
from mspcaps.explanation.tree_drawing import tree_drawing
from mspcaps.pages import stylesheet


@dataclass(frozen=True)
class Side:
    """One class in the picture: its parts."""

    label: int
    root: Node
    parts: Sequence[Node]
    heat: Tensor  # [h, w]


def style() -> str:
    """The sheets of our pages and of explanations, which hold inside .view only, and the app's own around them.

    Their rules are for whole pages and would also meet Gradio's own elements. The first begins with the colours and
    fonts of the design; those are for everybody.
    """
    colours, _, rules = stylesheet(SHEET).partition("* {")
    own = Path(__file__).with_name("app.css").read_text(encoding="utf-8")
    return f"{colours}\n.view {{\n* {{{rules}}}\n{own}"


def explained(found: Explanation, sides: Sequence[Side], untouched: Tensor | None, truth: str | None) -> str:
    """Headline, the parts of winner and runner-up beside each other, all lengths."""
    lengths = found.lengths[0].detach().cpu()
    top = max(float(side.heat.abs().max()) for side in sides)  # both maps have one scale
    size, count = (found.images.shape[2], found.images.shape[3]), len(found.scales)
    figures = []
    for side, place in zip(sides, ("the winner", "the runner-up"), strict=True):
        name = found.classes[side.label]
        parts, heat = parts_drawing(side.parts, size, count), heat_drawing(side.heat, top, f"Heat map of {name}")
        figures.append(
            f"<figure><h3>{escape(name)} <span>{float(lengths[side.label]):.2f}, {place}</span></h3>"
            f'<div class="twins">{parts}{heat}</div></figure>'
        )
    scale = scale_words(top, sides[0].heat.numel(), found.scales[0].cell)
    bars = length_bars(lengths, found.classes, [side.label for side in sides])
    return (
        f'<div class="view">{definitions(found.images[0].detach().cpu())}'
        f"{headline(lengths, found.classes, untouched, truth, 'capsule of length')}"
        f'<div class="sides">{"".join(figures)}</div>{legend(found)}'
        f'<p class="small">Both heat maps have the same scale: {scale}.</p>'
        f'<figure class="bars"><h3>Length of every class capsule</h3>{bars}</figure></div>'
    )


def plain(
    image: Tensor, lengths: Tensor, classes: tuple[str, ...], untouched: Tensor | None, truth: str | None, why: str
) -> str:
    """Of a model that cannot be explained: the picture as the model sees it, and its scores."""
    height, width = image.shape[1:]
    picture = (
        f'<svg class="big" viewBox="0 0 {width} {height}" role="img" aria-label="The picture as the model sees it">'
        '<use href="#picture"/></svg>'
    )
    return (
        f'<div class="view">{definitions(image.detach().cpu())}'
        f"{headline(lengths, classes, untouched, truth, 'score of')}"
        f'<div class="sides"><figure><h3>What it sees</h3>{picture}</figure>'
        f"<figure><h3>Score of every class</h3>{length_bars(lengths, classes, [int(lengths.argmax())])}"
        f'<p class="small">{escape(why)}.</p></figure></div></div>'
    )


def headline(lengths: Tensor, classes: tuple[str, ...], untouched: Tensor | None, truth: str | None, unit: str) -> str:
    """The answer in words, whether it is right, and what it was before the picture was changed."""
    first, second = lengths.argsort(descending=True)[:2].tolist()
    lead = closeness(float(lengths[first]), float(lengths[second]), classes[second])
    if untouched is not None:
        before = int(untouched.argmax())
        how = "also said" if before == first else "said"
        lead += f" For the untouched picture it {how} “{classes[before]}”, with {float(untouched[before]):.2f}."
    return (
        f'<h2 class="says">It says <b>{escape(classes[first])}</b>, with a {unit} {float(lengths[first]):.2f}.</h2>'
        f'<p class="lead">{verdict(classes[first], truth) if truth in classes else ""}{escape(lead)}</p>'
    )


def verdict(said: str, truth: str) -> str:
    kind = "right" if said == truth else "wrong"
    return f'<b class="{kind}">It is “{escape(truth)}”: {kind}.</b> '


def legend(found: Explanation) -> str:
    """What the outlines and colours mean, in few words."""
    count, keys = len(found.scales), {}
    for scale in reversed(range(count)):
        kind, cell = kind_of(scale, count), found.scales[scale].cell
        text = {
            "coarse": f"{cell} × {cell} patch with the largest effect on the class",
            "mid": f"{cell} × {cell} patches with the largest effects",
            "fine": f"{cell} × {cell} patches with the largest effects in them",
        }[kind]
        keys[kind] = text
    keys |= {"pro": "speaks for the class", "contra": "speaks against it"}
    items = "".join(f'<li><i class="key {kind}"></i>{escape(text)}</li>' for kind, text in keys.items())
    return f'<ul class="keys">{items}</ul>'


def trees(found: Explanation, sides: Sequence[Side]) -> str:
    """The part-whole trees; the runner-up's is folded away."""
    size, count = (found.images.shape[2], found.images.shape[3]), len(found.scales)
    winner, second = (tree_drawing(side.root, found.classes[side.label], size, count) for side in sides)
    other = escape(found.classes[sides[1].label])
    return (
        f'<div class="view"><h2>How the parts make the whole</h2><p class="note">{TREE_NOTE} '
        '<span class="swipe">Swipe the drawing sideways to see all of it.</span></p>'
        f'<figure class="scroll">{winner}</figure><details><summary>The same tree for “{other}”</summary>'
        f'<figure class="scroll">{second}</figure></details></div>'
    )


def sentence(text: str) -> str:
    """In the place of an answer."""
    text = text[:1].upper() + text[1:]
    return f'<div class="view"><p class="sorry">{escape(text)}{"" if text.endswith((".", "?")) else "."}</p></div>'
