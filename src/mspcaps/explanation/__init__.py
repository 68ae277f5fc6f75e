"""Why a model decides as it does: heat maps and scores for every model, routing and part-whole tree if it has them."""

from mspcaps.explanation.analysis import Explanation, explain
from mspcaps.explanation.geometry import Rect, Scale
from mspcaps.explanation.tree import Node

__all__ = ["Explanation", "Node", "Rect", "Scale", "explain"]
