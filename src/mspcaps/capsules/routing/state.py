"""The base class of routing blocks, and the record of a forward pass for explanations, routing health and attacks."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from mspcaps.capsules.patchify import Grid


class RoutingBlock(nn.Module):
    """A block that keeps its arguments, so that another one like it can be made."""

    inputs: tuple[str, ...] = ("input",)  # names of the capsules that forward takes, in order

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.arguments.items() if value is not False)

    def with_outputs(self, n_out: int) -> Self:
        """A new block like this one, for another number of output capsules."""
        return type(self)(**self.arguments | {"n_out": n_out})


@dataclass
class RoutingState:
    """Letters: b batch, j output capsule, e out-dim; k coarse, m fine capsule within k, i any capsule that votes.

    A routing appends one to the list that is passed to its forward, and the model adds the name.
    """

    block: nn.Module  # the routing; it has `inputs`, as a RoutingBlock has
    # cross-agreement: fine [k, b, m, j, e], coarse [k, b, j, e]; else [i, b, j, e], or none if there are too many
    votes: tuple[Tensor, ...]
    agreements: Tensor  # what the softmax sees: [k, b, j] or [i, b, j]
    couplings: Tensor  # of the same shape; those of the last iteration if there are several
    axis: int  # along which the couplings sum to one
    output: Tensor  # [b, j, e], after squash
    fine_agreements: Tensor | None = None  # cross-agreement: of each fine capsule, before the maximum [k, b, m, j]
    grids: tuple[Grid, Grid] | None = None  # cross-agreement: of the fine and of the coarse capsules
    members: Tensor | None = None  # local agreement: index of fine capsule m in the window of k, or -1 [k, m]
    name: str = ""  # path of the block inside its model, such as routing.0

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.block.inputs  # type: ignore[return-value]

    @property
    def equal_coupling(self) -> float:
        """Every coupling if all logits were equal; leaky routing shares with one more output, which is none of them."""
        return 1 / (self.couplings.shape[self.axis] + getattr(self.block, "leaky", False))

    def __repr__(self) -> str:
        return f"RoutingState({self.name}: couplings {list(self.couplings.shape)}, axis {self.axis})"


States = list[RoutingState]
