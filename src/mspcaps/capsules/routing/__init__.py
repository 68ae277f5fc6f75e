"""One file per routing algorithm."""

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting, MeanAgreementRouting
from mspcaps.capsules.routing.dual_attention import DualAttentionRouting
from mspcaps.capsules.routing.dynamic import DynamicRouting
from mspcaps.capsules.routing.fusion import AdditionFusion, ConcatenationFusion
from mspcaps.capsules.routing.self_agreement import SelfAgreementRouting
from mspcaps.capsules.routing.state import RoutingState, States

__all__ = [
    "AdditionFusion", "ConcatenationFusion", "CrossAgreementRouting", "DualAttentionRouting", "DynamicRouting",
    "MeanAgreementRouting", "RoutingState", "SelfAgreementRouting", "States",
]  # fmt: skip
