"""One file per routing algorithm."""

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.routing.dynamic import DynamicRouting

__all__ = ["CrossAgreementRouting", "DynamicRouting"]
