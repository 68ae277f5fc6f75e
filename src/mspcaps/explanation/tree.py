"""The part-whole tree of one image and one class."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from mspcaps.capsules import RoutingState, length
from mspcaps.explanation.geometry import Rect, Scale, members


@dataclass(frozen=True)
class Node:
    """A capsule, and how it speaks to the capsule above it in the tree."""

    kind: Literal["class", "patch", "middle"]  # middle capsules are numbered, not placed: they have no pixels
    index: int  # among the capsules of its kind: class, cell of the grid row by row, or middle capsule
    scale: int | None = None  # of a patch: 0 is the finest
    place: tuple[int, int] | None = None  # (row, column) on the grid of its scale
    rect: Rect | None = None  # pixels of that cell; the receptive field is larger
    coupling: float | None = None  # share of this coarse capsule among its siblings
    contribution: float | None = None  # to the length of the capsule above, or in windows of the class, before squash
    agreement: float | None = None  # of this fine capsule with the coarse capsule above it, whose coupling it decides
    effect: float | None = None  # in the tree: of a patch's pixels on the class; see heat.py
    heat: float | None = None  # of an outlined part: what the heat map, as it is drawn, adds up to in it
    length: float | None = None  # of a class or middle capsule, before squash
    children: "tuple[Node, ...]" = ()

    def walk(self) -> "Iterator[Node]":
        """This node and all below, the strongest first."""
        yield self
        for child in self.children:
            yield from child.walk()


def patch_node(scales: Sequence[Scale], level: int, index: int, **values: Any) -> Node:
    return Node("patch", index, level, scales[level].place(index), scales[level].rect(index), **values)


def strongest_parts(heat: Sequence[Tensor], scales: Sequence[Scale], count: int = 3) -> list[Node]:
    """Heat [n_i] of the patches of each scale, finest first -> the hottest: one coarse, `count` middle ones, and of the
    fine patches in each of these one; of two scales one coarse and one fine in it. Coarse first, so that the finer are
    drawn over it."""

    def hottest(level: int, among: Iterable[int], count: int) -> list[Node]:
        order = sorted(among, key=lambda index: -float(heat[level][index]))[:count]
        return [patch_node(scales, level, i, heat=float(heat[level][i])) for i in order]

    top = hottest(len(scales) - 1, range(len(heat[-1])), 1)
    if len(scales) == 1:
        return top
    middle = hottest(1, range(len(heat[1])), count) if len(scales) > 2 else []
    inner = []
    for node in middle or top:
        assert node.rect is not None
        inner += hottest(0, scales[0].inside(node.rect), 1)
    return [*top, *middle, *inner]


@dataclass(frozen=True)
class TreeBuilder:
    """Grows the tree of one image; `effects` [n_i] of every scale are those of the class asked for.

    The first block routes from the two finest scales, every other one from what the block before it found and the next
    coarser scale.
    """

    routing: Sequence[RoutingState]
    scales: Sequence[Scale]
    effects: Sequence[Tensor]
    image: int

    def tree(self, label: int) -> Node:
        length, children = self.coarse(len(self.routing) - 1, label)
        return Node("class", label, length=length, children=children)

    def patch(self, level: int, index: int, **values: Any) -> Node:
        return patch_node(self.scales, level, index, effect=float(self.effects[level][index]), **values)

    def coarse(self, block: int, j: int) -> tuple[float, tuple[Node, ...]]:
        """The length of output j of a block before squash, and all coarse capsules that vote for it, the largest
        contribution first."""
        level = len(self.scales) - 1 if block == len(self.routing) - 1 else block + 1
        couplings, contributions = vote_shares(self.routing[block], self.image, j)
        order = contributions.argsort(descending=True).tolist()
        nodes = []
        for k in order:
            shown = {"coupling": float(couplings[k]), "contribution": float(contributions[k])}
            nodes.append(self.patch(level, k, **shown, children=(self.fine(block, k, j),)))
        return float(contributions.sum()), tuple(nodes)

    def fine(self, block: int, k: int, j: int) -> Node:
        """Of the fine capsules under k the one whose agreement the routing takes for k's, a middle capsule or a fine
        patch: in the paper's routing the one that agrees most; for a mean, the one closest to it."""
        state = self.routing[block]
        assert state.fine_agreements is not None and state.grids is not None
        agreements = state.fine_agreements[k, self.image, :, j]  # [m]
        m = int((agreements - state.agreements[k, self.image, j]).abs().argmin())
        number, agreement = int(members(*state.grids)[k, m]), float(agreements[m])
        if block == 0:
            return self.patch(0, number, agreement=agreement)
        length, children = self.coarse(block - 1, number)
        return Node("middle", number, agreement=agreement, length=length, children=children)


class WindowTreeBuilder(TreeBuilder):
    """Grows the tree where parts lie in windows (local agreement): all capsules have a place, and all votes are added
    to those of the class. There is a local block for every scale but the finest, then the pooling.

    Every contribution is along the direction of the class capsule. That of a patch is the sum of what its own vote adds
    and of its children's, so the tree accounts for the whole length.
    """

    def tree(self, label: int) -> Node:
        *local, pooling = self.routing
        couplings, contributions = vote_shares(pooling, self.image, label)
        output = couplings @ pooling.votes[-1][:, self.image, label]  # [e]
        level, direction = len(local), output / length(output)
        children = []
        for k in contributions.argsort(descending=True).tolist():
            below = self.parts(level - 1, k, label, direction * couplings[k])
            shown = {"coupling": float(couplings[k]), "contribution": float(contributions[k])}
            children.append(self.patch(level, k, **shown, children=below))
        return Node("class", label, length=float(contributions.sum()), children=tuple(children))

    def parts(self, level: int, k: int, j: int, direction: Tensor) -> tuple[Node, ...]:
        """The patches in the window of patch k, the largest contribution first; `direction` times the coupling of all
        that is above them."""
        state = self.routing[level]
        assert state.members is not None
        couplings, agreements = (t[k, self.image, :, j] for t in (state.couplings, state.agreements))  # [m]
        contributions = couplings * (state.votes[0][k, self.image, :, j] @ direction)
        numbers, nodes = state.members[k].tolist(), []
        for m in contributions.argsort(descending=True).tolist():
            if (number := numbers[m]) >= 0:  # not beyond the border
                below = self.parts(level - 1, number, j, direction * couplings[m]) if level else ()
                shown = {"coupling": float(couplings[m]), "contribution": float(contributions[m])}
                nodes.append(self.patch(level, number, **shown, agreement=float(agreements[m]), children=below))
        return tuple(nodes)


def vote_shares(state: RoutingState, image: int, j: int) -> tuple[Tensor, Tensor]:
    """-> couplings [k] of those that vote for output j, and their contributions [k]: the votes times the couplings,
    along the direction of the output s_j = sum_k c[j,k] U[j,k]. They add up to |s_j|; who votes against what the others
    agree on has a negative one."""
    couplings, votes = state.couplings[:, image, j], state.votes[-1][:, image, j]  # [k], [k, e]
    output = couplings @ votes
    return couplings, couplings * (votes @ (output / length(output)))
