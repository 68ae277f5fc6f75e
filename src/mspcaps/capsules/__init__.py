"""The maths of capsules."""

from mspcaps.capsules.losses import margin_loss
from mspcaps.capsules.patchify import PatchifyCaps
from mspcaps.capsules.routing import (
    AdditionFusion,
    ConcatenationFusion,
    CrossAgreementRouting,
    DualAttentionRouting,
    DynamicRouting,
    MeanAgreementRouting,
    RoutingState,
    SelfAgreementRouting,
    States,
)
from mspcaps.capsules.squash import length, squash
from mspcaps.capsules.votes import cast_votes

__all__ = [
    "AdditionFusion",
    "ConcatenationFusion",
    "CrossAgreementRouting",
    "DualAttentionRouting",
    "DynamicRouting",
    "MeanAgreementRouting",
    "PatchifyCaps",
    "RoutingState",
    "SelfAgreementRouting",
    "States",
    "cast_votes",
    "length",
    "margin_loss",
    "squash",
]
