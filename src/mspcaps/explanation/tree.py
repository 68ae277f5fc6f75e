"""The part-whole tree of one image and one class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from mspcaps.capsules import CrossAgreementRouting
from mspcaps.explanation.blocks import Block
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
    contribution: float | None = None  # to the length of the capsule above before squash; siblings add up to it
    agreement: float | None = None  # of this fine capsule with the coarse capsule above it: the highest of its group
    effect: float | None = None  # of a patch's pixels on the class; see explain/heat.py
    length: float | None = None  # of a class or middle capsule, before squash
    children: "tuple[Node, ...]" = ()

    def walk(self) -> "Iterator[Node]":
        """This node and all below, the strongest first."""
        yield self
        for child in self.children:
            yield from child.walk()


def strongest(nodes: Sequence[Node], count: int) -> list[Node]:
    """Those with the largest effects on the class, the largest first."""
    return sorted(nodes, key=lambda node: -(node.effect or 0.0))[:count]


@dataclass(frozen=True)
class TreeBuilder:
    """Grows the tree of image b; `effects` [n_i] of every scale are those of the class asked for."""

    routing: Sequence[nn.Module]
    blocks: Sequence[Block]
    scales: Sequence[Scale]
    effects: Sequence[Tensor]
    b: int

    def parts(self, count: int = 3) -> list[Node]:
        """The patches with the largest effects: one coarse, some middle ones, and of the fine patches in each of these
        one; of two scales one coarse and one fine in it. Coarse first, so that the finer are drawn over it."""
        every = [[self.patch(scale, index) for index in range(len(found))] for scale, found in enumerate(self.effects)]
        top = strongest(every[-1], 1)
        if len(every) == 1:
            return top
        middle = strongest(every[1], count) if len(every) == 3 else []
        below = members(self.scales[0].grid, self.scales[1].grid).tolist()
        inner = [strongest([every[0][number] for number in below[node.index]], 1)[0] for node in middle or top]
        return [*top, *middle, *inner]

    def tree(self, label: int) -> Node:
        norm = float(self.blocks[-1].norms[self.b, label])
        return Node("class", label, length=norm, children=self.coarse(len(self.blocks) - 1, label))

    def coarse(self, block: int, j: int) -> tuple[Node, ...]:
        """All coarse capsules that vote for output j of a block, the largest contribution first."""
        scale = len(self.scales) - 1 if block == len(self.blocks) - 1 else 1
        couplings = self.blocks[block].couplings[:, self.b, j].tolist()
        contributions = self.blocks[block].contributions[:, self.b, j].tolist()
        order = sorted(range(len(couplings)), key=lambda k: -contributions[k])
        return tuple(
            self.patch(
                scale, k, coupling=couplings[k], contribution=contributions[k], children=(self.fine(block, k, j),)
            )
            for k in order
        )

    def fine(self, block: int, k: int, j: int) -> Node:
        """Of the fine capsules under k the one that agrees most: a middle capsule or a fine patch."""
        routing = self.routing[block]
        assert isinstance(routing, CrossAgreementRouting)
        agreements = self.blocks[block].agreements[k, self.b, :, j]  # [m]
        m = int(agreements.argmax())
        number, agreement = int(members(routing.fine, routing.coarse)[k, m]), float(agreements[m])
        if block == 0:
            return self.patch(0, number, agreement=agreement)
        norm = float(self.blocks[0].norms[self.b, number])
        return Node("middle", number, agreement=agreement, length=norm, children=self.coarse(0, number))

    def patch(
        self,
        scale: int,
        index: int,
        coupling: float | None = None,
        contribution: float | None = None,
        agreement: float | None = None,
        children: tuple[Node, ...] = (),
    ) -> Node:
        where = self.scales[scale]
        return Node(
            "patch", index, scale, where.place(index), where.rect(index), coupling, contribution, agreement,
            effect=float(self.effects[scale][index]), children=children,
        )  # fmt: skip
