"""Squash and capsule length: always in fp32 or better, finite with finite gradients at the zero vector."""

import contextlib

import torch
from torch import Tensor

EPS = 1e-12  # inside square roots, whose gradient at zero is infinite


def at_least_fp32(x: Tensor) -> Tensor:
    """Converts half precision, which cannot hold the squares of short capsules, to fp32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which matrix products keep the precision of their operands."""
    # The meta device has no autocast; torch.amp.is_autocast_available would say so, but torch.compile refuses it.
    on_meta = x.device.type == "meta"
    return contextlib.nullcontext() if on_meta else torch.autocast(x.device.type, enabled=False)


def squash(s: Tensor, dim: int | tuple[int, ...] = -1, constant: float = 1.0) -> Tensor:
    """|s|^2 / (constant + |s|^2) * s / |s| over the last axis, or over the axes `dim` together; lengths in [0, 1)."""
    s = at_least_fp32(s)
    square = s.square().sum(dim, keepdim=True)  # [..., 1]
    return s * ((square + EPS).sqrt() / (constant + square))


def exponential_squash(s: Tensor) -> Tensor:
    """Efficient-CapsNet's (1 - exp(-|s|)) * s / |s| over the last axis: [..., d] -> [..., d], lengths in [0, 1)."""
    s = at_least_fp32(s)
    norm = (s.square().sum(-1, keepdim=True) + EPS).sqrt()  # [..., 1]
    return s * (-torch.expm1(-norm) / norm)


def length(v: Tensor) -> Tensor:
    """Euclidean length of each capsule: [..., d] -> [...]."""
    return (at_least_fp32(v).square().sum(-1) + EPS).sqrt()
