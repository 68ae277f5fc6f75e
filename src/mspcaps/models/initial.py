"""The scale that weights start from, by the kind of layer: papers rarely state it, and it matters."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from mspcaps.errors import MspcapsError

KINDS: Mapping[str, Callable[[str, nn.Module], bool]] = {  # by the name of a parameter and the module that has it
    "votes": lambda name, module: name.startswith("routing."),
    "positions": lambda name, module: name.endswith(".position"),
    "convolutions": lambda name, module: isinstance(module, nn.Conv2d) and name.endswith(".weight"),
}


def scale_initial_weights(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply the initial weights of each kind by its factor; 1 leaves them as they are."""
    for kind, factor in factors.items():
        if kind not in KINDS:
            raise MspcapsError(f"initial_scale has no {kind!r}: the kinds are {', '.join(KINDS)}")
        if type(factor) not in (int, float) or not 0 <= factor < float("inf"):
            raise MspcapsError(f"initial_scale of {kind} is {factor!r}, but must be a non-negative number")
        found = [
            p
            for place, module in model.named_modules()
            for name, p in module.named_parameters(place, recurse=False)
            if KINDS[kind](name, module)
        ]
        if not found:
            raise MspcapsError(f"initial_scale names {kind}, but the model has none")
        with torch.no_grad():
            for p in found:
                p.mul_(factor)
