"""The maths of capsules."""

from mspcaps.capsules.losses import margin_loss
from mspcaps.capsules.patchify import PatchifyCaps
from mspcaps.capsules.routing import (
    AdditionFusion,
    AttentionRouting,
    CapsuleAffine,
    ConcatenationFusion,
    ConvAttentionRouting,
    CrossAgreementRouting,
    DualAttentionRouting,
    DynamicRouting,
    DynamicRouting3D,
    InvertedAttentionRouting,
    MeanAgreementRouting,
    OrthogonalAttentionRouting,
    RoutingState,
    SelfAgreementRouting,
    SelfAttentionRouting,
    SimplifiedOrthogonalRouting,
    SparseAttentionRouting,
    States,
)
from mspcaps.capsules.squash import exponential_squash, length, squash
from mspcaps.capsules.votes import cast_votes

__all__ = [
    "AdditionFusion",
    "AttentionRouting",
    "CapsuleAffine",
    "ConcatenationFusion",
    "ConvAttentionRouting",
    "CrossAgreementRouting",
    "DualAttentionRouting",
    "DynamicRouting",
    "DynamicRouting3D",
    "InvertedAttentionRouting",
    "MeanAgreementRouting",
    "OrthogonalAttentionRouting",
    "PatchifyCaps",
    "RoutingState",
    "SelfAgreementRouting",
    "SelfAttentionRouting",
    "SimplifiedOrthogonalRouting",
    "SparseAttentionRouting",
    "States",
    "cast_votes",
    "exponential_squash",
    "length",
    "margin_loss",
    "squash",
]
