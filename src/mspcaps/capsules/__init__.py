"""The maths of capsules."""

from mspcaps.capsules.losses import length_cross_entropy, margin_loss
from mspcaps.capsules.patchify import PatchifyCaps
from mspcaps.capsules.routing import (
    AdditionFusion,
    AgreementPooling,
    AttentionRouting,
    CapsuleAffine,
    ConcatenationFusion,
    ConvAttentionRouting,
    CrossAgreementRouting,
    DualAttentionRouting,
    DynamicRouting,
    DynamicRouting3D,
    InvertedAttentionRouting,
    LocalAgreementRouting,
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
    "AdditionFusion", "AgreementPooling", "AttentionRouting", "CapsuleAffine", "ConcatenationFusion",
    "ConvAttentionRouting", "CrossAgreementRouting", "DualAttentionRouting", "DynamicRouting", "DynamicRouting3D",
    "InvertedAttentionRouting", "LocalAgreementRouting", "MeanAgreementRouting", "OrthogonalAttentionRouting",
    "PatchifyCaps", "RoutingState", "SelfAgreementRouting", "SelfAttentionRouting", "SimplifiedOrthogonalRouting",
    "SparseAttentionRouting", "States", "cast_votes", "exponential_squash", "length", "length_cross_entropy",
    "margin_loss", "squash",
]  # fmt: skip
