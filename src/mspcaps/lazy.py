"""Names that a package imports when they are first used, so that what does not need torch does not wait for it."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: name -> the module of the package that defines it; "" means it is a module."""

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return __getattr__
