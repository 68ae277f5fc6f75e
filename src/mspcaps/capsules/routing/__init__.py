"""One file per routing algorithm."""

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.routing.dynamic import DynamicRouting
from mspcaps.capsules.routing.mean_agreement import MeanAgreementRouting
from mspcaps.capsules.routing.self_agreement import SelfAgreementRouting
from mspcaps.capsules.routing.state import RoutingState

__all__ = ["CrossAgreementRouting", "DynamicRouting", "MeanAgreementRouting", "RoutingState", "SelfAgreementRouting"]
