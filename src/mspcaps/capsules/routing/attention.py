"""Attention routing (Choi, Seo, Im and Kang, "Attention routing between capsules", 2019): one pass, no agreement.

    vote      U[i,j] = u[i] W[i,j] + bias[i,j], or a convolution over a map of capsules
    logit     A[k,j] = sum over i and e of attention[j,k,e,i] U[i,j,e]: a learnt map of all votes for j
    coupling  C[i,j] = softmax over i
    output    v[j]   = tanh( M[j] sum over i of C[i,j] U[i,j] + m[j] ), with a matrix for each output capsule

In a map, i and j are channels: each position has its own couplings, and all positions share the weights. Initial
weights are Glorot's; inputs and outputs are counted as Keras does in the authors' code, over all output capsules.
"""

import math

import torch
from torch import Tensor, nn

from mspcaps.capsules.routing.state import RoutingBlock, RoutingState, States
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.capsules.votes import cast_votes


class CapsuleAffine(nn.Module):
    """A separate affine map for every capsule: [..., n, d] -> [..., n, d], in fp32 or better."""

    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(glorot(torch.empty(n, d, d), d, n * d))
        self.bias = nn.Parameter(torch.zeros(n, d))

    def forward(self, s: Tensor) -> Tensor:
        mapped = torch.einsum("...jd,jde->...je", s.to(self.weight.dtype), self.weight)
        return at_least_fp32(mapped) + self.bias


class Attention(RoutingBlock):
    """Everything after the votes, for capsules and for maps of capsules alike."""

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int, **arguments: int) -> None:
        super().__init__(n_in=n_in, d_in=d_in, n_out=n_out, d_out=d_out, **arguments)
        weights = torch.empty(n_out, n_in, d_out, n_in)
        self.attention = nn.Parameter(glorot(weights, d_out * n_in, d_out * n_in * n_out))
        self.affine = CapsuleAffine(n_out, d_out)

    def attend(self, U: Tensor, states: States | None, shortcut: Tensor | None = None) -> Tensor:
        """Votes [i, b, p, j, e] at p positions, a shortcut to add before tanh [b, p, j, e] -> capsules [b, p, j, e].

        In `states`, output capsules at different positions are different capsules: [i, b, p j, e].
        """
        A = torch.einsum("ibpje,jkei->kbpj", U.to(self.attention.dtype), self.attention)
        A = at_least_fp32(A)  # [i, b, p, j]
        C = A.softmax(0)  # sums to one over i
        s = self.affine((C.unsqueeze(-1) * U).sum(0))  # [b, p, j, e]
        v = (s if shortcut is None else s + shortcut).tanh()
        if states is not None:
            A, C = A.flatten(2), C.flatten(2)  # [i, b, p j]
            states.append(RoutingState(self, (U.flatten(2, 3),), A, C, axis=0, output=v.flatten(1, 2)))
        return v


class AttentionRouting(Attention):
    """Capsules [b, n_in, d_in] -> [b, n_out, d_out]; softmax over the input capsules."""

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int) -> None:
        super().__init__(n_in, d_in, n_out, d_out)
        self.w = nn.Parameter(glorot(torch.empty(n_in, d_in, n_out, d_out), d_in, n_in * n_out * d_out))
        self.bias = nn.Parameter(torch.zeros(n_in, 1, n_out, d_out))

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        """Appends its RoutingState to `states` if given."""
        U = cast_votes(u.transpose(0, 1), self.w) + self.bias  # [i, b, j, e]
        return self.attend(U.unsqueeze(2), states)[:, 0]

    def tensor_places(self) -> dict[str, None]:
        return {"w": None}  # a capsule may be a whole map, whose layout only the model knows


class ConvAttentionRouting(Attention):
    """Map of capsules [b, n_in, d_in, h, w] -> [b, n_out, d_out, h', w']: a 3x3 convolution per channel makes votes."""

    def __init__(self, n_in: int, d_in: int, n_out: int, d_out: int, stride: int = 1) -> None:
        super().__init__(n_in, d_in, n_out, d_out, stride=stride)
        self.votes = (n_in, n_out, d_out)
        self.transform = nn.Conv2d(n_in * d_in, n_in * n_out * d_out, 3, stride, padding=1, groups=n_in)
        nn.init.xavier_uniform_(self.transform.weight)
        nn.init.zeros_(self.transform.bias)  # type: ignore[arg-type]

    def forward(self, u: Tensor, states: States | None = None, shortcut: Tensor | None = None) -> Tensor:
        """A shortcut [b, n_out, d_out, h', w'] is added before tanh; `states` as in AttentionRouting."""
        votes = self.transform(u.flatten(1, 2).to(self.transform.weight.dtype))  # [b, i j e, h, w]
        U = votes.flatten(2).unflatten(1, self.votes).permute(1, 0, 4, 2, 3)  # [i, b, p, j, e]
        if shortcut is not None:
            shortcut = shortcut.flatten(3).permute(0, 3, 1, 2)  # [b, p, j, e]
        v = self.attend(at_least_fp32(U), states, shortcut)
        return v.permute(0, 2, 3, 1).unflatten(-1, votes.shape[2:])  # [b, j, e, h, w]


def glorot(weights: Tensor, inputs: int, outputs: int) -> Tensor:
    """Fills the tensor from the uniform distribution between -x and x, x^2 = 6 / (inputs + outputs)."""
    bound = math.sqrt(6 / (inputs + outputs))
    return nn.init.uniform_(weights, -bound, bound)
