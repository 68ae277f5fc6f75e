"""One file per routing algorithm."""

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.routing.dynamic import DynamicRouting
from mspcaps.capsules.routing.mean_agreement import MeanAgreementRouting
from mspcaps.capsules.routing.self_agreement import SelfAgreementRouting

__all__ = ["CrossAgreementRouting", "DynamicRouting", "MeanAgreementRouting", "SelfAgreementRouting"]
