"""The vote attack (Gu, Wu and Tresp, Effective and Efficient Vote Attack on Capsule Networks, ICLR 2021).

Routing can hide gradients: couplings that saturate pass hardly any. This attack goes past it. What the last routing
block gives is replaced by the squashed sum of its votes,

    v[j] = squash( sum over i of C[i,j] U[i,j] )

with couplings C that have no gradient, and the steps of PGD raise the loss of the scores that the rest of the model
computes from that: first with uniform couplings, the same for every vote, then, for the images that still stand, with
the couplings that the model itself has for the image, held constant. In cross-agreement routing U are the coarse votes,
the only ones that are added up. Whether an image fools is always what the whole model says. Earlier routing blocks are
differentiated as they are, and what a block adds to the sum before it is squashed (a bias, an affine map) is left out.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mspcaps.capsules import RoutingState, squash
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks.common import Attempt, Draws, Found, attacked, attempts, check_counts
from mspcaps.evaluation.attacks.objectives import find_objective
from mspcaps.evaluation.attacks.pgd import walk
from mspcaps.models import Model, unwrapped
from mspcaps.models.layers import in_eval_mode

Couplings = Literal["uniform", "constant"]


def vote_attack(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 20,
    step_size: float | None = None, restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `pgd`, for every model whose routing has votes for the classes."""
    check_counts(steps, restarts)
    with attacked(model, x, y, eps) as classes:
        loss, size = find_objective(objective, model, classes), 2.5 * eps / steps if step_size is None else step_size
        block = last_block(model, x[:1])

        def past_routing(couplings: Couplings, restart: int) -> Attempt:
            def attempt(x: Tensor, y: Tensor, draws: Draws) -> Found:
                def ascended(images: Tensor) -> Tensor:
                    with without_routing(block, couplings):
                        return model(images)

                start = (x + eps * draws.within(x, restart)).clamp(0, 1)
                return walk(ascended, model, loss, x, start, y, eps, size, steps)

            return attempt

        ways: tuple[Couplings, ...] = ("uniform", "constant")
        tries = (past_routing(couplings, restart) for restart in range(restarts) for couplings in ways)
        return attempts(tries, model, x, y, Draws.for_images(seed, x, numbers))


def last_block(model: nn.Module, image: Tensor) -> nn.Module:
    """The routing block whose output capsules are the classes."""
    inner = unwrapped(model)
    states: list[RoutingState] = []
    if isinstance(inner, Model):
        with torch.no_grad(), in_eval_mode(inner):  # or BatchNorm would learn from the image
            states = inner.routing_state(image)
            classes = inner.num_classes
    if not states or not states[-1].votes or states[-1].output.shape[1] != classes:
        name = getattr(inner, "config", {}).get("name", type(inner).__name__)
        raise MspcapsError(f"{name} has no routing with votes for the classes: use pgd or apgd in place of votes")
    return inner.get_submodule(states[-1].name)


def has_votes(model: nn.Module, image: Tensor) -> bool:
    """Whether `vote_attack` takes the model."""
    try:
        last_block(model, image)
    except MspcapsError:
        return False
    return True


@contextlib.contextmanager
def without_routing(block: nn.Module, couplings: Couplings) -> Iterator[None]:
    """Meanwhile the block gives the squashed sum of its votes."""

    def sum_votes(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        states: list[RoutingState] = []
        capsules = [arg for arg in args if isinstance(arg, Tensor)]  # the list of states, None here, comes last
        module.forward(*capsules, states=states)
        if not states:  # a first pass that weighs nothing yet
            return None
        return summed(states[0], couplings).view_as(output)

    hook = block.register_forward_hook(sum_votes)
    try:
        yield
    finally:
        hook.remove()


def summed(state: RoutingState, couplings: Couplings) -> Tensor:
    """-> [b, j, e]; in cross-agreement routing the coarse votes, which come last, are those that count."""
    C = state.couplings.detach()  # [i, b, j] or [k, b, j]
    if couplings == "uniform":
        C = torch.full_like(C, 1 / C.shape[state.axis])
    return squash((C.unsqueeze(-1) * state.votes[-1]).sum(0))
