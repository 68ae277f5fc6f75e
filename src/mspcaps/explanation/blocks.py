"""What happens inside cross-agreement routing, block by block.

Letters as in capsules/routing/cross_agreement.py: b batch, j output, k coarse, m fine within k, e out-dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from mspcaps.capsules import CrossAgreementRouting, States, length, squash


@dataclass(frozen=True)
class Block:
    """One routing block at work."""

    agreements: Tensor  # [k, b, m, j]
    couplings: Tensor  # [k, b, j], sum to one over k
    votes: Tensor  # of the coarse capsules, [k, b, j, e]

    def __repr__(self) -> str:
        shapes = (f"{name} {list(tensor.shape)}" for name, tensor in vars(self).items())
        return f"Block({', '.join(shapes)})"

    @property
    def sums(self) -> Tensor:
        """[b, j, e]: the output capsules before squash, sum_k c[j,k] U2[j,k]."""
        return (self.couplings.unsqueeze(-1) * self.votes).sum(0)

    @property
    def norms(self) -> Tensor:
        """[b, j]: the lengths of the output capsules before squash."""
        return length(self.sums)

    @property
    def contributions(self) -> Tensor:
        """[k, b, j]: c[j,k] U2[j,k] projected onto the direction of the output capsule; sums to `norms` over k.

        Negative where a coarse capsule votes against what the others agree on.
        """
        direction = self.sums / self.norms.unsqueeze(-1)  # [b, j, e]
        return self.couplings * (self.votes * direction).sum(-1)


def run_block(routing: nn.Module, u1: Tensor, u2: Tensor) -> Block:
    assert isinstance(routing, CrossAgreementRouting)
    states: States = []
    routing(u1, u2, states)
    assert states[0].fine_agreements is not None
    return Block(states[0].fine_agreements, states[0].couplings, states[0].votes[1])


def run_routing(routing: Sequence[nn.Module], u: Sequence[Tensor]) -> tuple[Block, ...]:
    """Primary capsules of every scale, finest first -> the blocks; the last one's outputs are the class capsules."""
    if len(routing) == 1:
        return (run_block(routing[0], u[0], u[-1]),)
    first = run_block(routing[0], u[0], u[1])
    return first, run_block(routing[1], squash(first.sums), u[2])
