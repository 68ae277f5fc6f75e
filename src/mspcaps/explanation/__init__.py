"""Why a model decides as it does: routing internals, the part-whole tree, heat maps, pages."""

from mspcaps.explanation.explanation import Explanation, explain
from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.tree import Node

__all__ = ["Explanation", "Node", "Rect", "explain"]
