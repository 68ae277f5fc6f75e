"""What a routing block does with a batch, for whoever watches or explains it."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class RoutingState:
    """Letters as in the file of each routing: b batch, j output capsule, e out-dim; k, m or i those that vote."""

    inputs: tuple[str, ...]  # what the arguments of the block's forward are, in order
    votes: tuple[Tensor, ...]  # cross-agreement: fine [k, b, m, j, e], coarse [k, b, j, e]; else [i, b, j, e]
    agreements: Tensor  # what the softmax sees: [k, b, j] or [i, b, j]
    couplings: Tensor  # of the same shape; those of the last iteration if there are several
    axis: int  # along which the couplings sum to one
    each: Tensor | None = None  # cross-agreement: the agreement of each fine capsule, [k, b, m, j]
    name: str = ""  # path of the block inside its model, such as routing.0

    def __repr__(self) -> str:
        return f"RoutingState({self.name}: couplings {list(self.couplings.shape)}, axis {self.axis})"

    def named(self, name: str) -> "RoutingState":
        return replace(self, name=name)
