"""The part-whole tree as a drawing: from the class on the left to the finest patches on the right."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from mspcaps.explanation.drawing import kind_of, rectangle
from mspcaps.explanation.tree import Node
from mspcaps.pages import signed
from mspcaps.pages.charts import inline

ROWS, TWIGS = 4, 3  # number of coarse patches, and of patches under each of them
TOP, GAP = 64, 26
DECISIVE = "that sets the coupling"  # the one fine capsule below a coarse one whose agreement counts
COARSE, SMALL = 92, 52  # heights of the thumbnails
X_CLASS, X_COARSE, X_MIDDLE, X_MID, X_FINE = 0, 190, 478, 618, 842
WIDTH, PILL = 1016, 136  # widths of the drawing and of the class in it


@dataclass(frozen=True)
class Drawer:
    """Draws patches of images of one size, for a model with this many scales."""

    size: tuple[int, int]
    scales: int

    def thumbnail(self, node: Node, x: float, y: float, height: float) -> str:
        """The whole image, dark except for the patch, with its left edge at x and its middle at y."""
        assert node.rect is not None and node.scale is not None
        rows, columns = self.size
        r, zoom = node.rect, height / max(self.size)
        y -= zoom * rows / 2
        hole = f"M{r.left} {r.top}H{r.right}V{r.bottom}H{r.left}Z"
        return (
            f'<g transform="translate({x:.1f} {y:.1f}) scale({zoom:.4f})"><use href="#picture"/>'
            f'<path class="shade" d="M0 0H{columns}V{rows}H0Z{hole}"/>'
            f"{rectangle(r, kind_of(node.scale, self.scales), 1.8 / zoom)}</g>"
        )

    def width(self, height: float) -> float:
        """Of a thumbnail."""
        return height * self.size[1] / max(self.size)


def tree_drawing(root: Node, name: str, size: tuple[int, int], scales: int) -> Markup:
    """The coarse patches that add most to the class, and next to each the finer patches that add most to it."""
    drawer = Drawer(size, scales)
    chosen = root.children[:ROWS]  # largest contribution first
    deep = bool(chosen[0].children[0].children)
    height = max(COARSE, TWIGS * (SMALL + 10) if deep else 0) + GAP
    total, middle = TOP + height * len(chosen), TOP + height * len(chosen) / 2
    parts = [heads(root, chosen, deep)]
    for number, node in enumerate(chosen):
        y = TOP + height * (number + 0.5) - GAP / 2
        parts.append(edge(X_CLASS + PILL, middle, X_COARSE, y, node))
        parts.append(drawer.thumbnail(node, X_COARSE, y, COARSE))
        parts.append(vote_words(X_COARSE + drawer.width(COARSE) + 12, y - 5, 20, node))
        parts.append(branch(drawer, node, y) if deep else leaf(drawer, node, y))
    parts.append(
        f'<rect class="pill" x="{X_CLASS}" y="{middle - 30:.1f}" width="{PILL}" height="60" rx="12"/>'
        f'<text class="pilltext" x="{X_CLASS + PILL // 2}" y="{middle - 3:.1f}" text-anchor="middle">'
        f"{escape(short(name))}</text>"
        f'<text class="pillsmall" x="{X_CLASS + PILL // 2}" y="{middle + 17:.1f}" text-anchor="middle">'
        f"before squash {root.length or 0:.1f}</text>"
    )
    width = WIDTH if deep else X_MIDDLE + 250
    return inline(f"The part-whole tree of {name}", parts, "tree", width, total)


def heads(root: Node, chosen: Sequence[Node], deep: bool) -> str:
    """Titles of the columns."""
    others = root.children[len(chosen) :]
    rest = f"the other {len(others)} add {signed(sum(node.contribution or 0.0 for node in others))}" if others else ""
    columns = [(X_CLASS, "the class", ""), (X_COARSE, f"coarse patches, {extent(chosen[0])}", rest)]
    if deep:
        voters = voters_of(chosen[0])
        best = f"the {min(TWIGS, len(voters))} of {len(voters)} that add most"
        if has_centre(chosen[0]):
            columns.append((X_MIDDLE - 30, "middle capsule", DECISIVE))
        columns.append((X_MID, f"its patches, {extent(voters[0])}", best))
        decisive = DECISIVE if has_centre(chosen[0]) else "that adds most"
        columns.append((X_FINE, f"fine patch, {extent(voters[0].children[0])}", decisive))
    else:
        columns.append((X_MIDDLE, f"fine patch, {extent(chosen[0].children[0])}", DECISIVE))
    return "".join(
        f'<text class="head" x="{x}" y="16">{escape(first)}</text><text class="tick" x="{x}" y="35">{second}</text>'
        for x, first, second in columns
    )


def branch(drawer: Drawer, coarse: Node, y: float) -> str:
    """Coarse patch -> middle capsule, if there is one -> the patches that add most to it -> a fine patch of each."""
    start = X_COARSE + drawer.width(COARSE) + 118
    parts, fork = [], start
    if has_centre(coarse):
        parts.append(f'<line class="link" x1="{start:.1f}" x2="{X_MIDDLE - 21}" y1="{y:.1f}" y2="{y:.1f}"/>')
        fork = X_MIDDLE + 20
    twigs = voters_of(coarse)[:TWIGS]
    for number, twig in enumerate(twigs):
        at = y + (number - (len(twigs) - 1) / 2) * (SMALL + 10)
        parts.append(edge(fork, y, X_MID, at, twig))
        parts.append(drawer.thumbnail(twig, X_MID, at, SMALL))
        x = X_MID + drawer.width(SMALL) + 9
        parts.append(vote_words(x, at - 4, 18, twig))
        fine = twig.children[0]
        words = f"agrees {signed(fine.agreement)}"
        if fine.contribution is not None:
            words = f"adds {signed(fine.contribution)}"
        parts.append(f'<line class="link" x1="{x + 110:.1f}" x2="{X_FINE}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(drawer.thumbnail(fine, X_FINE, at, SMALL))
        parts.append(f'<text class="tick" x="{X_FINE + drawer.width(SMALL) + 9:.1f}" y="{at + 5:.1f}">{words}</text>')
    if has_centre(coarse):
        (centre,) = coarse.children
        parts.append(
            f'<text class="tick" x="{X_MIDDLE}" y="{y + 40:.1f}" text-anchor="middle">'
            f"agrees {signed(centre.agreement)}</text>"
            f'<circle class="capsule" cx="{X_MIDDLE}" cy="{y:.1f}" r="20"/><text class="number" x="{X_MIDDLE}" '
            f'y="{y + 5:.1f}" text-anchor="middle">{centre.index}</text>'
        )
    return "".join(parts)


def has_centre(coarse: Node) -> bool:
    """Whether a middle capsule, which has no place, lies between a coarse patch and the finer ones."""
    return coarse.children[0].kind == "middle"


def voters_of(coarse: Node) -> Sequence[Node]:
    """The patches of the middle scale that vote for a coarse patch, or for the middle capsule below it."""
    return coarse.children[0].children if has_centre(coarse) else coarse.children


def leaf(drawer: Drawer, coarse: Node, y: float) -> str:
    """With a single routing block the fine patch follows the coarse one directly."""
    (fine,) = coarse.children
    start = X_COARSE + drawer.width(COARSE) + 118
    return (
        f'<line class="link" x1="{start:.1f}" x2="{X_MIDDLE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f"{drawer.thumbnail(fine, X_MIDDLE, y, COARSE)}"
        f'<text class="tick" x="{X_MIDDLE + drawer.width(COARSE) + 12:.1f}" y="{y + 5:.1f}">'
        f"agrees {signed(fine.agreement)}</text>"
    )


def vote_words(x: float, y: float, leading: float, node: Node) -> str:
    """What a vote adds and, below it, its coupling."""
    return (
        f'<text class="value" x="{x:.1f}" y="{y:.1f}">adds {signed(node.contribution)}</text>'
        f'<text class="tick" x="{x:.1f}" y="{y + leading:.1f}">coupling {node.coupling:.2f}</text>'
    )


def edge(x1: float, y1: float, x2: float, y2: float, node: Node) -> str:
    """Its width shows the coupling, its colour the sign of what the vote adds."""
    bend, kind = (x1 + x2) / 2, "for" if (node.contribution or 0.0) >= 0 else "against"
    width = 1.5 + 14 * (node.coupling or 0.0)
    path = f"M{x1:.1f} {y1:.1f}C{bend:.1f} {y1:.1f} {bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="edge {kind}" stroke-width="{width:.1f}" d="{path}"/>'


def extent(node: Node) -> str:
    assert node.rect is not None
    return f"{node.rect.bottom - node.rect.top} × {node.rect.right - node.rect.left}"


def short(name: str) -> str:
    """What fits into the pill; a long name keeps its beginning and its end, where class names differ."""
    return name if len(name) <= 11 else f"{name[:6]}…{name[-4:]}"
