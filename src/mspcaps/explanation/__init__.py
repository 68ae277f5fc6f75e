"""Why a model decides as it does: heat maps and scores of any model, routing and part-whole tree where it has them."""

from mspcaps.explanation.analysis import Explanation, explain
from mspcaps.explanation.geometry import Rect, Scale
from mspcaps.explanation.tree import Node

__all__ = ["Explanation", "Node", "Rect", "Scale", "explain"]
