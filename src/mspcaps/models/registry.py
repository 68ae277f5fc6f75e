"""Names of models and the functions that build them."""

import fnmatch
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from mspcaps.errors import MspcapsError, nearest
from mspcaps.models.model import TASK, ImageSize, Model, make_task

_builders: dict[str, Callable[..., Model]] = {}
B = TypeVar("B", bound=Callable[..., Model])


def register_model(function: B) -> B:
    """Register a model under the name of the decorated function: def NAME(task, *, option=default, ...) -> Model.

    Options are bool, int, float or str. Defining the function again replaces it.
    """
    name, existing = function.__name__, _builders.get(function.__name__)
    if existing is not None and full_name(existing) != full_name(function):
        raise MspcapsError(f"there is already a model {name}, in {existing.__module__}: give yours another name")
    parameters = [*inspect.signature(function).parameters.values()]
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise MspcapsError(f"{name} must take a task: def {name}(task, *, option=default)")
    for p in parameters[1:]:
        if p.kind is not p.KEYWORD_ONLY or type(p.default) not in (bool, int, float, str):
            raise MspcapsError(
                f"{p.name} of {name} must be a keyword whose default is a bool, an int, a float or a str"
            )
    _builders[name] = function
    return function


def full_name(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def defining_module(name: str) -> str:
    """The module that another process must import to register a model."""
    check_name(name)
    return _builders[name].__module__


def registered_models(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern, sorted."""
    return sorted(fnmatch.filter(_builders, pattern))


def check_name(name: str) -> None:
    """Refuses anything but the name of a registered model."""
    if not isinstance(name, str) or name not in _builders:
        hint = nearest(str(name), _builders, "`mspcaps models` lists them.")
        raise MspcapsError(f"there is no model {name!r:.80}: {hint}")


def model_options(name: str) -> dict[str, Any]:
    """The options of a model's family with their defaults, such as {"patch": 4}."""
    check_name(name)
    parameters = inspect.signature(_builders[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults; refuses a wrong name or type."""
    defaults = model_options(name)
    for key, value in options.items():
        if key not in defaults:
            choices = [*TASK, "pretrained", *defaults]
            hint = nearest(key, choices, f"it takes {', '.join(choices)}.")
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

    `mean` and `std` (per channel) are the normalisation inside the model; both default to 0.5.
    """
    options = check_options(name, options)
    task = make_task(name, num_classes, in_chans, img_size, mean, std)
    model = _builders[name](task, **options)
    if not isinstance(model, Model):
        raise MspcapsError(f"the function {name} must return a mspcaps.models.Model, not a {type(model).__name__}")
    model.config = {"name": name, **model.config, **options}
    return model


def build_on_meta(name: str, **settings: Any) -> Model:
    """The same without numbers: it takes neither memory nor time, but has all names and shapes."""
    with torch.device("meta"):
        return build_model(name, **settings)
