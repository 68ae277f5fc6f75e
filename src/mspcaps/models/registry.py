"""Names of models and the functions that build them."""

import fnmatch
import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar

from mspcaps.errors import MspcapsError, nearest
from mspcaps.models.model import Model, Task

ImageSize = int | tuple[int, int]
LARGEST = 1 << 24  # of classes, channels and pixels a side: products of them still fit into 64 bits
TASK = ("num_classes", "in_chans", "img_size", "mean", "std")

_builders: dict[str, Callable[..., Model]] = {}
B = TypeVar("B", bound=Callable[..., Model])


def register_model(function: B) -> B:
    """Register a model under the name of the decorated function, which takes a Task and the options of the family,
    keywords with defaults. Defining it again replaces it."""
    name, known = function.__name__, _builders.get(function.__name__)
    if known is not None and home_of(known) != home_of(function):
        raise MspcapsError(f"there is already a model {name}, in {known.__module__}: give yours another name")
    _builders[name] = function
    return function


def home_of(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def registered_models(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern, sorted."""
    return sorted(fnmatch.filter(_builders, pattern))


def check_name(name: str) -> None:
    """Refuses what is not the name of a registered model."""
    if not isinstance(name, str) or name not in _builders:
        hint = nearest(str(name), _builders, "`mspcaps models` lists them.")
        raise MspcapsError(f"there is no model {name!r:.80}: {hint}")


def model_options(name: str) -> dict[str, Any]:
    """The options of a model's family with their defaults, such as {"patch": 4}."""
    check_name(name)
    parameters = inspect.signature(_builders[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults; a wrong name or type is refused."""
    defaults = model_options(name)
    for key, value in options.items():
        if key not in defaults:
            choices = ", ".join([*TASK, "pretrained", *defaults])
            hint = nearest(key, [*TASK, "pretrained", *defaults], f"it takes {choices}.")
            raise MspcapsError(f"{name} has no option {key!r}: {hint}")
        kind = type(defaults[key])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise MspcapsError(f"the option {key} of {name} is {value!r:.80}, but must be {kind.__name__}")
        if kind is int and value < 1:
            raise MspcapsError(f"the option {key} of {name} is {value}, but must be at least 1")
    return {key: value for key, value in options.items() if value != defaults[key]}


def build_model(
    name: str,
    *,
    num_classes: int = 10,
    in_chans: int = 3,
    img_size: ImageSize = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Model:
    """A freshly initialised model: images in [0, 1], [b, in_chans, *img_size] -> class scores [b, num_classes].

    mean and std per channel are the normalisation inside the model; 0.5 where nothing is known about the images.
    """
    options = check_options(name, options)
    task = check_task(name, num_classes, in_chans, img_size, mean, std)
    model = _builders[name](task, **options)
    if not isinstance(model, Model):
        raise MspcapsError(f"the function {name} must return a mspcaps.models.Model, not a {type(model).__name__}")
    model.config = {"name": name, **model.config, **options}
    return model


def check_task(
    name: str, num_classes: int, in_chans: int, img_size: ImageSize, mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Task:  # fmt: skip
    """Whole numbers of a sensible size, one mean and deviation per channel."""
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
        means = tuple(float(m) for m in mean) if mean is not None else (0.5,) * in_chans
        deviations = tuple(float(s) for s in std) if std is not None else (0.5,) * in_chans
    except (TypeError, ValueError) as error:
        raise MspcapsError(
            f"mean and std must be lists of numbers, one per channel, not {mean!r} and {std!r}"
        ) from error
    if not all(map(math.isfinite, (*means, *deviations))):
        raise MspcapsError(f"mean and std must be finite, not {means} and {deviations}")
    if min(deviations, default=0) < 0:
        raise MspcapsError(f"std is {deviations}, but a deviation cannot be negative")
    if len(means) != in_chans or len(deviations) != in_chans:
        raise MspcapsError(
            f"mean and std need one value per channel: got {len(means)} and {len(deviations)} for {in_chans}"
        )
    return Task(num_classes, in_chans, size, means, deviations)
