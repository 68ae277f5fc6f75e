"""The part-whole tree of one image and one class."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from mspcaps.capsules import RoutingState, length
from mspcaps.explanation.geometry import Rect, Scale, members


@dataclass(frozen=True)
class Node:
    """A capsule and its relation to the capsule above it in the tree."""

    kind: Literal["class", "patch", "middle"]  # a middle capsule has a number, but no place and no pixels
    index: int  # number of the class, of the cell on the grid (row by row), or of the middle capsule
    scale: int | None = None  # patches only: 0 is the finest
    place: tuple[int, int] | None = None  # (row, column) on the grid of its scale
    rect: Rect | None = None  # pixels of that cell; the receptive field is larger
    coupling: float | None = None  # share of this coarse capsule among its siblings
    contribution: float | None = None  # to the length before squash of the capsule above (in windows: of the class)
    agreement: float | None = None  # of this fine capsule with the coarse capsule above it, whose coupling it decides
    effect: float | None = None  # of a patch's pixels on the class, in a tree; see heat.py
    heat: float | None = None  # sum of the drawn heat map over the patch, for an outlined part
    length: float | None = None  # of a class or middle capsule, before squash
    children: "tuple[Node, ...]" = ()

    def walk(self) -> "Iterator[Node]":
        """This node and all below, the strongest first."""
        yield self
        for child in self.children:
            yield from child.walk()


def patch_node(scales: Sequence[Scale], level: int, index: int, **values: Any) -> Node:
    return Node("patch", index, level, scales[level].place(index), scales[level].rect(index), **values)


def strongest_parts(heat: Sequence[Tensor], scales: Sequence[Scale]) -> list[Node]:
    """Heat [n_i] of the patches of each scale, finest first -> the hottest patches: one coarse, three middle ones and
    the hottest fine one in each of these; with two scales one coarse and one fine inside it. Coarse patches come first,
    so that finer ones are drawn over them."""

    def hottest(level: int, among: Iterable[int], count: int) -> list[Node]:
        order = sorted(among, key=lambda index: -float(heat[level][index]))[:count]
        return [patch_node(scales, level, i, heat=float(heat[level][i])) for i in order]

    top = hottest(len(scales) - 1, range(len(heat[-1])), 1)
    if len(scales) == 1:
        return top
    middle = hottest(1, range(len(heat[1])), 3) if len(scales) > 2 else []
    inner = []
    for node in middle or top:
        assert node.rect is not None
        inner += hottest(0, scales[0].inside(node.rect), 1)
    return [*top, *middle, *inner]


@dataclass(frozen=True)
class TreeBuilder:
    """Builds the tree of one image; `effects` [n_i] of every scale are those on the class of the tree.

    The first block routes from the two finest scales, every other block from the output of the one before and the next
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
        """The length of output j of a block before squash, and all coarse capsules that vote for it, largest
        contribution first."""
        level = len(self.scales) - 1 if block == len(self.routing) - 1 else block + 1
        couplings, contributions = vote_shares(self.routing[block], self.image, j)
        nodes = []
        for k in contributions.argsort(descending=True).tolist():
            vote = {"coupling": float(couplings[k]), "contribution": float(contributions[k])}
            nodes.append(self.patch(level, k, **vote, children=(self.fine(block, k, j),)))
        return float(contributions.sum()), tuple(nodes)

    def fine(self, block: int, k: int, j: int) -> Node:
        """The fine capsule under k that sets its coupling, a middle capsule or a fine patch: in the paper's routing the
        one that agrees most; if the routing takes a mean of the agreements, the one closest to it."""
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
    """Builds the tree of a model whose parts lie in windows (local agreement): every capsule has a place, and all votes
    add up to the class capsule. There is a local block for every scale but the finest, then the pooling.

    Every contribution is along the direction of the class capsule. A patch contributes its own vote and those of its
    children, so the tree accounts for the whole length.
    """

    def tree(self, label: int) -> Node:
        *local, pooling = self.routing
        couplings, contributions = vote_shares(pooling, self.image, label)
        output = couplings @ pooling.votes[-1][:, self.image, label]  # [e]
        level, direction = len(local), output / length(output)
        children = []
        for k in contributions.argsort(descending=True).tolist():
            below = self.parts(level - 1, k, label, direction * couplings[k])
            vote = {"coupling": float(couplings[k]), "contribution": float(contributions[k])}
            children.append(self.patch(level, k, **vote, children=below))
        return Node("class", label, length=float(contributions.sum()), children=tuple(children))

    def parts(self, level: int, k: int, j: int, direction: Tensor) -> tuple[Node, ...]:
        """The patches in the window of patch k, largest contribution first; `direction` is that of the class capsule,
        times all couplings above them."""
        state = self.routing[level]
        assert state.members is not None
        couplings, agreements = (t[k, self.image, :, j] for t in (state.couplings, state.agreements))  # [m]
        contributions = couplings * (state.votes[0][k, self.image, :, j] @ direction)
        numbers, nodes = state.members[k].tolist(), []
        for m in contributions.argsort(descending=True).tolist():
            if (number := numbers[m]) >= 0:  # not beyond the border
                below = self.parts(level - 1, number, j, direction * couplings[m]) if level else ()
                vote = {"coupling": float(couplings[m]), "contribution": float(contributions[m])}
                nodes.append(self.patch(level, number, **vote, agreement=float(agreements[m]), children=below))
        return tuple(nodes)


def vote_shares(state: RoutingState, image: int, j: int) -> tuple[Tensor, Tensor]:
    """-> couplings [k] of the capsules that vote for output j, and their contributions [k]: the votes times the
    couplings, along the direction of the output s_j = sum_k c[j,k] U[j,k]. They add up to |s_j|; a vote against the
    consensus has a negative contribution."""
    couplings, votes = state.couplings[:, image, j], state.votes[-1][:, image, j]  # [k], [k, e]
    output = couplings @ votes
    return couplings, couplings * (votes @ (output / length(output)))
