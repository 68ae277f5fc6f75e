"""Names that a package imports on first use, so that whatever does not need torch does not wait for it."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: name -> the module that defines it, or "" if it is a module itself."""

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return __getattr__
