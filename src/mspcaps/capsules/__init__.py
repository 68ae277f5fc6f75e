"""The maths of capsules."""

from mspcaps.capsules.losses import length_cross_entropy, margin_loss
from mspcaps.capsules.patchify import PatchifyCaps
from mspcaps.capsules.routing.attention import AttentionRouting, CapsuleAffine, ConvAttentionRouting
from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting, MeanAgreementRouting
from mspcaps.capsules.routing.dual_attention import DualAttentionRouting
from mspcaps.capsules.routing.dynamic import DynamicRouting
from mspcaps.capsules.routing.dynamic_3d import DynamicRouting3D
from mspcaps.capsules.routing.fusion import AdditionFusion, ConcatenationFusion
from mspcaps.capsules.routing.inverted_attention import InvertedAttentionRouting
from mspcaps.capsules.routing.local_agreement import AgreementPooling, LocalAgreementRouting
from mspcaps.capsules.routing.orthogonal_attention import (
    OrthogonalAttentionRouting,
    SimplifiedOrthogonalRouting,
    SparseAttentionRouting,
)
from mspcaps.capsules.routing.self_agreement import SelfAgreementRouting
from mspcaps.capsules.routing.self_attention import SelfAttentionRouting
from mspcaps.capsules.routing.state import RoutingState, States
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
