"""The maths of capsules."""

from mspcaps.capsules.losses import margin_loss
from mspcaps.capsules.patchify import PatchifyCaps
from mspcaps.capsules.routing import (
    CrossAgreementRouting,
    DynamicRouting,
    MeanAgreementRouting,
    RoutingState,
    SelfAgreementRouting,
)
from mspcaps.capsules.squash import length, squash

__all__ = [
    "CrossAgreementRouting",
    "DynamicRouting",
    "MeanAgreementRouting",
    "PatchifyCaps",
    "RoutingState",
    "SelfAgreementRouting",
    "length",
    "margin_loss",
    "squash",
]
