"""Votes: what every input capsule predicts for every output capsule, with a matrix for each pair."""

import torch
from torch import Tensor

from mspcaps.capsules.squash import at_least_fp32


def cast_votes(u: Tensor, w: Tensor) -> Tensor:
    """Capsules u [i, ..., d] and matrices w [i, d, j, e] -> votes [i, ..., j, e], in fp32 or better.

    Input capsules come first, so the votes of a whole batch are one batched matrix product.
    """
    votes = torch.bmm(u.flatten(1, -2).to(w.dtype), w.flatten(2))  # [i, ..., j e]
    return at_least_fp32(votes).view(*u.shape[:-1], *w.shape[2:])
