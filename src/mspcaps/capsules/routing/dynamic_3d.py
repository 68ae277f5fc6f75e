"""Dynamic routing by 3D convolution (Rajasegaran et al., "DeepCaps: Going Deeper with Capsule Networks", 2019).

Letters: b batch, i type of input capsule, j type of output capsule, d in-dim, e out-dim, h rows, w columns.

    votes      V[i,j] = convolution of the map of type i, the same kernel for every i
    couplings  C[i]   = softmax over (j, h, w) together
    output     v[j]   = squash( sum over i of C[i,j] V[i,j] + bias[j] ), with the length over (e, h, w) together
    logits     B[i,j] += <V[i,j], v[j]> at every position
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import at_least_fp32, squash


class DynamicRouting3D(RoutingBlock):
    """Maps of capsules [b, i, d, h, w] -> [b, j, e, h, w]: a 3 x 3 window votes for the capsules at its centre.

    The authors' 3D kernel is as deep as a capsule and its stride is as large: a 2D convolution of each type.
    With `joint`, as in the authors' code, squash uses one length for the whole map of a type, else one per position.
    """

    def __init__(self, d_in: int, n_out: int, d_out: int, iterations: int = 3, joint: bool = True) -> None:
        super().__init__(d_in=d_in, n_out=n_out, d_out=d_out, iterations=iterations, joint=joint)
        self.n_out, self.d_out, self.iterations, self.joint = n_out, d_out, iterations, joint
        self.w = nn.Parameter(torch.randn(n_out * d_out, d_in, 3, 3) * (2 / (9 * d_in)) ** 0.5)
        self.bias = nn.Parameter(torch.full((n_out, d_out, 1, 1), 0.1))

    def votes(self, u: Tensor) -> Tensor:
        """-> [b, i, j, e, h, w]."""
        votes = F.conv2d(u.flatten(0, 1).to(self.w.dtype), self.w, padding=1)  # [b i, j e, h, w]
        return at_least_fp32(votes).unflatten(1, (self.n_out, self.d_out)).unflatten(0, u.shape[:2])

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends the RoutingState of the last iteration to `states` if given."""
        V = self.votes(u)  # [b, i, j, e, h, w]
        logits = V.new_zeros(V[:, :, :, 0].shape)  # [b, i, j, h, w]
        for iteration in range(self.iterations):
            C = logits.flatten(2).softmax(-1).view(logits.shape)  # sums to one over j, h, w
            s = (C.unsqueeze(3) * V).sum(1) + self.bias  # [b, j, e, h, w]
            v = squash(s, (2, 3, 4) if self.joint else 2)
            if iteration < self.iterations - 1:
                logits = logits + (V * v.unsqueeze(1)).sum(3)
        if states is not None:
            votes = V.permute(1, 0, 2, 4, 5, 3).flatten(2, 4)  # [i, b, j h w, e]
            A, C = (t.flatten(2).transpose(0, 1) for t in (logits, C))  # [i, b, j h w]
            output = v.movedim(2, -1).flatten(1, 3)  # [b, j h w, e]
            states.append(RoutingState(self, (votes,), A, C, axis=2, output=output))
        return v
