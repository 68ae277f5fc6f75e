"""Names to models."""

import fnmatch
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from torch import Tensor, nn

from mspcaps.capsules import RoutingState
from mspcaps.errors import MspcapsError, nearest

ImageSize = int | tuple[int, int]
LARGEST = 1 << 24  # of classes, channels and pixels a side: products of them still fit into 64 bits


class Model(nn.Module):
    """What every model of `create_model` and `load_model` has, and all that a type checker knows of one from a file.

    What a family has besides, such as `forward_capsules`, `isinstance(model, MSPCaps)` tells.
    """

    config: dict[str, Any]  # name, num_classes, in_chans, img_size, mean and std: what makes a model like it
    metadata: dict[str, Any]  # what else its weights file says, such as classes and recipe; empty without one
    loss: Callable[..., Tensor]  # what it is trained with: scores [b, K], labels [b] -> scalar

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        """What every routing block does with a batch, in order; empty for a model without couplings."""
        return []

    if TYPE_CHECKING:  # PyTorch's own returns Any

        def __call__(self, x: Tensor) -> Tensor: ...


class Builder(Protocol):
    """What a registered function takes: the shape of the task, and the normalisation that lives inside the model."""

    __name__: str

    def __call__(
        self, *, num_classes: int, in_chans: int, img_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> nn.Module: ...


_builders: dict[str, Builder] = {}
B = TypeVar("B", bound=Callable[..., nn.Module])


def register_model(function: B) -> B:
    """Register a model under the name of the decorated function. Defining it again replaces it."""
    name, known = function.__name__, _builders.get(function.__name__)
    if known is not None and home_of(known) != home_of(function):
        raise MspcapsError(f"there is already a model {name}, in {known.__module__}: give yours another name")
    _builders[name] = function
    return function


def home_of(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern, sorted."""
    return sorted(fnmatch.filter(_builders, pattern))


def check_name(name: str) -> None:
    """Refuses what is not the name of a registered model."""
    if not isinstance(name, str) or name not in _builders:
        hint = nearest(str(name), _builders, "`mspcaps models` lists them.")
        raise MspcapsError(f"there is no model {name!r:.80}: {hint}")


def create_model(
    name: str,
    num_classes: int = 10,
    in_chans: int = 3,
    img_size: ImageSize = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """A freshly initialised model: images in [0, 1], [b, in_chans, *img_size] -> class scores [b, num_classes].

    mean and std per channel are the normalisation inside the model; 0.5 where nothing is known about the images.
    """
    check_name(name)
    sides = tuple(img_size) if isinstance(img_size, list | tuple) else (img_size, img_size)
    if len(sides) != 2 or not all(isinstance(side, Integral) for side in sides):
        raise MspcapsError(f"img_size is {img_size!r}, but must be one or two whole numbers of pixels")
    size = int(sides[0]), int(sides[1])
    for what, value in (("num_classes", num_classes), ("in_chans", in_chans), ("img_size", max(size))):
        if isinstance(value, Integral) and value >= LARGEST:
            raise MspcapsError(f"{what} is {value}, but must be less than {LARGEST}")
    for what, value, least in (("num_classes", num_classes, 2), ("in_chans", in_chans, 1)):
        if not isinstance(value, Integral):
            raise MspcapsError(f"{what} is {value!r}, but must be a whole number")
        if value < least:
            raise MspcapsError(f"{what} is {value}, but {name} needs at least {least}")
    num_classes, in_chans = int(num_classes), int(in_chans)
    try:
        mean = tuple(float(m) for m in mean) if mean is not None else (0.5,) * in_chans
        std = tuple(float(s) for s in std) if std is not None else (0.5,) * in_chans
    except (TypeError, ValueError) as error:
        raise MspcapsError(
            f"mean and std must be lists of numbers, one per channel, not {mean!r} and {std!r}"
        ) from error
    if not all(map(math.isfinite, (*mean, *std))):
        raise MspcapsError(f"mean and std must be finite, not {mean} and {std}")
    if min(std, default=0) < 0:
        raise MspcapsError(f"std is {std}, but a deviation cannot be negative")
    if len(mean) != in_chans or len(std) != in_chans:
        raise MspcapsError(f"mean and std need one value per channel: got {len(mean)} and {len(std)} for {in_chans}")
    module = _builders[name](num_classes=num_classes, in_chans=in_chans, img_size=size, mean=mean, std=std)
    if not isinstance(module, nn.Module):
        raise MspcapsError(f"the function {name} must return a module, but returned a {type(module).__name__}")
    model = cast(Model, module)  # any module will do: what a Model has it gets here, but for the loss
    model.config = {
        "name": name, "num_classes": num_classes, "in_chans": in_chans, "img_size": size, "mean": mean, "std": std,
    }  # fmt: skip
    model.metadata = {}
    return model
