"""One self-contained page about one image: no script, no request, it opens from anywhere."""

from html import escape
from pathlib import Path

from mspcaps import __version__
from mspcaps.explanation.drawing import definitions, heat_drawing, kind_of, length_bars, parts_drawing, scale_words
from mspcaps.explanation.explanation import Explanation
from mspcaps.explanation.tree_drawing import signed, tree_drawing
from mspcaps.pages import skeleton, stylesheet

SHEET = Path(__file__).with_name("page.css")
KEY_WITHIN = 1000  # bytes of a page, from its beginning, that hold the tag of its key


def key_tag(key: str) -> str:
    """By it a page is known as that of the same picture."""
    return f'<meta name="mspcaps-picture" content="{escape(key)}">'


def choose_classes(found: Explanation, image: int, label: int | str | None) -> tuple[int, int]:
    """What the page is about and what stands beside it: winner and runner-up, or the class asked for and the winner."""
    winner, second = found.ranking[image, :2].tolist()
    asked = found.number_of(image, label)
    return (winner, second) if asked == winner else (asked, winner)


def render(
    found: Explanation, image: int, title: str, model: str, label: int | str | None = None, key: str = ""
) -> str:
    """The page of one image of the batch; `title` names it, `model` explained it, `key` tells it from others."""
    shown = choose_classes(found, image, label)
    body = "".join(
        [
            definitions(found.images[image].detach().cpu()),
            header(found, image, title, model, shown),
            overview(found, image, shown),
            heat_maps(found, image, shown),
            trees(found, image, shown),
            words(found),
            f"<footer>Written by mspcaps {__version__}, mspcaps explain.</footer>",
        ]
    )
    return skeleton(title, stylesheet(SHEET), body, key_tag(key) if key else "")


def header(found: Explanation, image: int, title: str, model: str, shown: tuple[int, int]) -> str:
    lengths, classes = found.lengths[image], found.classes
    winner, second = found.ranking[image, :2].tolist()
    asked = "" if shown[0] == winner else f" This page asks why it could be “{classes[shown[0]]}”."
    lead = f"{closeness(float(lengths[winner]), float(lengths[second]), classes[second])}{asked}"
    return (
        f'<header><p class="overline">{escape(title)}, seen by {escape(model)}</p>'
        f"<h1>It says <b>{escape(classes[winner])}</b>, with a capsule of length {float(lengths[winner]):.2f}.</h1>"
        f'<p class="lead">{escape(lead)}</p></header>'
    )


def closeness(first: float, second: float, name: str) -> str:
    """How the runner-up stands, in words."""
    how = "close behind" if second > 0.75 * first else "behind" if second > 0.4 * first else "far behind"
    text = f"The runner-up is “{name}” with {second:.2f}, {how}."
    return f"{text} No capsule is long: the model is not sure of anything here." if first < 0.5 else text


def overview(found: Explanation, image: int, shown: tuple[int, int]) -> str:
    """The image with its strongest parts, and all lengths."""
    parts, name = found.parts(image, shown[0]), escape(found.classes[shown[0]])
    count = len(found.scales)
    size = (found.images.shape[2], found.images.shape[3])
    keys = {}
    for scale in reversed(range(count)):
        kind, cell = kind_of(scale, count), found.scales[scale].cell
        text = {
            "coarse": f"the {cell} × {cell} patch with the largest effect on “{name}”",
            "mid": f"the {cell} × {cell} patches with the largest effects",
            "fine": f"in {'each of these' if count == 3 else 'it'}, the {cell} × {cell} patch with the largest effect",
        }[kind]
        keys[kind] = f'<li><span><i class="key {kind}"></i></span><span>{text}</span></li>'
    return (
        f'<div class="top"><figure><h3>The strongest parts</h3>{parts_drawing(parts, size, count)}'
        f'<ul class="legend">{"".join(keys.values())}</ul></figure>'
        "<figure><h3>Length of every class capsule</h3>"
        f"{length_bars(found.lengths[image], found.classes, shown)}"
        '<p class="small">A class capsule is a vector; its length, from 0 to 1, says how strongly the class is '
        "present. The lengths need not add up to one.</p></figure></div>"
    )


def heat_maps(found: Explanation, image: int, shown: tuple[int, int]) -> str:
    maps = [found.heat_map(label)[image].detach().cpu() for label in shown]
    top = max(float(heat.abs().max()) for heat in maps)
    figures = []
    for label, heat in zip(shown, maps, strict=True):
        name, norm = escape(found.classes[label]), float(found.blocks[-1].norms[image, label])
        caption = (
            f"The map adds up to {signed(float(heat.sum()))}: the length before squash is {norm:.2f} here and "
            f"{float(found.blank_norms[label]):.2f} for a blank image."
        )
        figures.append(
            f"<figure><h3>{name}</h3>{heat_drawing(heat, top, f'Heat map of {found.classes[label]}')}"
            f'<p class="small">{caption}</p></figure>'
        )
    scale = scale_words(top, maps[0].numel(), found.scales[0].cell)
    return (
        "<section><h2>Where it sees the class</h2>"
        '<p class="note">How much each patch lengthens or shortens the class capsule when it is uncovered on a blank '
        "image of the mean colour. Patches of all scales are overlaid. Both maps have the same scale: "
        f"{scale}.</p>"
        f'<div class="pair">{"".join(figures)}</div>'
        '<ul class="legend"><li><span><i class="key pro"></i></span><span>speaks for the class</span></li>'
        '<li><span><i class="key contra"></i></span><span>speaks against it</span></li></ul></section>'
    )


TREE_NOTE = (
    "Every coarse patch votes for the class; the thicker its line, the higher its coupling. The coupling is high where "
    "a capsule of the finer scale agrees with the vote, so the tree follows the one that agrees most. Of the patches "
    "of a middle capsule, those that add most to it are drawn; what their pixels do to the class is their effect. "
    "Green lines lengthen the capsule they lead to, red ones shorten it. The tree shows what the routing computed; the "
    "heat map shows better where the class is seen."
)


def trees(found: Explanation, image: int, shown: tuple[int, int]) -> str:
    size, count = (found.images.shape[2], found.images.shape[3]), len(found.scales)
    drawings = [tree_drawing(found.tree(image, label), found.classes[label], size, count) for label in shown]
    other = escape(found.classes[shown[1]])
    return (
        "<section><h2>How the parts make the whole</h2>"
        f'<p class="note">{TREE_NOTE} '
        '<span class="swipe">Swipe the drawing sideways to see all of it.</span></p>'
        f'<figure class="scroll">{drawings[0]}</figure><details><summary>The same tree for “{other}”</summary>'
        f'<figure class="scroll">{drawings[1]}</figure></details>'
        "</section>"
    )


def words(found: Explanation) -> str:
    """What the numbers mean."""
    entries = [
        (
            "coupling",
            "The weight of a patch's vote, from 0 to 1. The weights of all patches that vote for the same capsule add "
            "up to 1.",
        ),
        (
            "adds",
            "The vote times its coupling, along the direction of the capsule it votes for. Over all its patches this "
            "adds up to the capsule's length before squash; squash then shortens it to less than 1.",
        ),
        (
            "agrees",
            "How well the vote of a finer capsule fits the coarse vote above it. The best fit sets the coupling.",
        ),
        (
            "effect",
            "What the pixels of the patch add to the class capsule's length before squash when the image is uncovered "
            "patch by patch, averaged over several orders. The heat map is made of effects. A patch that adds much to "
            "a capsule above it can still have little effect: a blank patch may add as much.",
        ),
        (
            "patch",
            "The square a capsule is cut from. It can see more than this square: every convolution before it looks a "
            "little further, so what is drawn is where a part sits, not all that it sees.",
        ),
    ]
    if len(found.scales) == 3:
        entries.insert(
            3,
            (
                "middle capsule",
                "Built from all middle and fine patches. It has a number, but no place of its own in the image.",
            ),
        )
    return (
        '<section><h2>What the words mean</h2><dl class="words">'
        + "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in entries)
        + "</dl></section>"
    )
