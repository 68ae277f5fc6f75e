"""The vote attack (Gu, Wu and Tresp, Effective and Efficient Vote Attack on Capsule Networks, ICLR 2021).

Routing can hide gradients: saturated couplings pass hardly any. This attack bypasses it. The output of the last routing
block is replaced by the squashed sum of its votes,

    v[j] = squash( sum over i of C[i,j] U[i,j] )

with couplings C that have no gradient, and PGD raises the loss of the scores that the rest of the model computes from
it: first with uniform couplings, then, for the surviving images, with the couplings that the model itself has for the
image, held constant. In cross-agreement routing U are the coarse votes, the only ones that are added up. Whether an
image fools is always decided by the whole model. Earlier routing blocks are differentiated as they are; anything that a
block adds to the sum before squash (a bias, an affine map) is left out.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mspcaps.capsules import RoutingState, squash
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks.common import Adversarial, Draws, attacked, run_attempts
from mspcaps.evaluation.attacks.objectives import find_objective
from mspcaps.evaluation.attacks.pgd import walk
from mspcaps.models import Model, unwrapped
from mspcaps.models.layers import in_eval_mode

Couplings = Literal["uniform", "constant"]


def vote_attack(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, objective: str = "cross_entropy", *, steps: int = 20,
    restarts: int = 1, seed: int = 0, numbers: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `pgd`, for every model whose routing has votes for the classes."""
    with attacked(model, x, y, eps, steps, restarts) as classes:
        loss, block = find_objective(objective, model, classes), last_block(model, x[:1])

        def attempt(x: Tensor, y: Tensor, draws: Draws, couplings: Couplings, restart: int) -> Adversarial:
            def surrogate(images: Tensor) -> Tensor:
                with without_routing(block, couplings):
                    return model(images)

            return walk(surrogate, model, loss, x, draws.start(x, eps, restart), y, eps, 2.5 * eps / steps, steps)

        attempts = [
            partial(attempt, couplings=couplings, restart=restart)
            for restart in range(restarts)
            for couplings in get_args(Couplings)
        ]
        return run_attempts(attempts, model, x, y, Draws.for_images(seed, x, numbers))


def last_block(model: nn.Module, image: Tensor) -> nn.Module:
    """The routing block whose output capsules are the classes."""
    inner = unwrapped(model)
    states: list[RoutingState] = []
    if isinstance(inner, Model):
        with torch.no_grad(), in_eval_mode(inner):  # BatchNorm must not learn from the image
            states = inner.routing_state(image)
            classes = inner.num_classes
    if not states or not states[-1].votes or states[-1].output.shape[1] != classes:
        name = getattr(inner, "config", {}).get("name", type(inner).__name__)
        raise MspcapsError(f"{name} has no routing with votes for the classes: use pgd or apgd instead of votes")
    return inner.get_submodule(states[-1].name)


def has_votes(model: nn.Module, image: Tensor) -> bool:
    """Whether `vote_attack` can attack the model."""
    try:
        last_block(model, image)
    except MspcapsError:
        return False
    return True


@contextlib.contextmanager
def without_routing(block: nn.Module, couplings: Couplings) -> Iterator[None]:
    """Inside, the block outputs the squashed sum of its votes."""

    def sum_votes(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        states: list[RoutingState] = []
        capsules = [arg for arg in args if isinstance(arg, Tensor)]  # without the list of states, None here
        module.forward(*capsules, states=states)
        if not states:  # a first pass without couplings
            return None
        return squashed_sum(states[0], couplings).view_as(output)

    hook = block.register_forward_hook(sum_votes)
    try:
        yield
    finally:
        hook.remove()


def squashed_sum(state: RoutingState, couplings: Couplings) -> Tensor:
    """-> [b, j, e]; in cross-agreement routing only the coarse votes count, which come last."""
    C = state.couplings.detach()  # [i, b, j] or [k, b, j]
    if couplings == "uniform":
        C = torch.full_like(C, 1 / C.shape[state.axis])
    return squash((C.unsqueeze(-1) * state.votes[-1]).sum(0))
