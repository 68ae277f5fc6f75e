"""Why a model decides as it does: routing internals, the part-whole tree, heat maps, pages, and how far to trust them.

`mspcaps.explain(model, x)` is the way in. The room has the same name as the function, so it can be called too: what
`mspcaps.explain` is must not depend on whether somebody has imported one of its files before.
"""

import sys
from types import ModuleType
from typing import Any

from mspcaps.explain.explanation import Explanation, explain
from mspcaps.explain.geometry import Rect
from mspcaps.explain.tree import Node

__all__ = ["Explanation", "Node", "Rect", "explain"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        return explain(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
