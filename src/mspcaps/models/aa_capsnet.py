"""AA-CapsNet: CapsNet with one pass of self-attention over the positions of the image instead of routing.

Paper: Pucci, Micheloni and Martinel, "Self-Attention Agreement Among Capsules", 2021.
Known: the abstract, the authors' code for other capsule networks, and the 6.6M parameters that other papers quote. The
network is CapsNet up to the primary capsules; attention then selects regions among their maps of votes, and a
classification layer follows. CapsNet has more parameters, so there cannot be a matrix for each pair of capsules.
Our reading: this is a reconstruction sized to the published count, not a reproduction. The primary capsules of a
position, as 256 channels, are its votes; queries and keys have 32 channels; the output of attention is scaled by one
number that starts at zero; the hidden layer has 128 units because that gives 6.6M. The bias of the keys, which the
count includes, cancels in the softmax. Scores are sigmoids, trained with the margin loss; with `loss="cross_entropy"`
they are logits.
Differs from it: nothing else is known. Images are normalised inside the model, as everywhere in this library. There are
no class capsules and no decoder. Attention runs between positions, not to classes, so there is no routing state.
Parameters: 6,592,971 for 1 x 28 x 28, 6,634,443 for 3 x 28 x 28, 7,551,947 for 3 x 32 x 32.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import squash
from mspcaps.capsules.squash import at_least_fp32, without_autocast
from mspcaps.errors import MspcapsError
from mspcaps.models.capsnet import D_IN, primary_grid
from mspcaps.models.layers import run_block
from mspcaps.models.model import LinearClassifier, MarginClassifier, Task
from mspcaps.models.registry import register_model

TYPES = 32  # of primary capsules
D_KEY = 32  # channels of queries and keys
HIDDEN = 128  # width of the hidden layer
LOSSES = ("margin", "cross_entropy")


class PositionAttention(nn.Module):
    """u + gamma * attention over the positions of a map: [b, c, h, w] -> [b, c, h, w]; the identity at first.

    A[m, n] = softmax over n of <query[m], key[n]>; position m gets the sum over n of A[m, n] value[n].
    """

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(chans, D_KEY, 1)
        self.key = nn.Conv2d(chans, D_KEY, 1)
        self.value = nn.Conv2d(chans, chans, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def couplings(self, u: Tensor) -> Tensor:
        """[b, c, h, w] -> A [b, m, n], sums to one over n."""
        q, k = (at_least_fp32(conv(u).flatten(2)) for conv in (self.query, self.key))  # [b, d, n]
        with without_autocast(u):
            return (q.transpose(1, 2) @ k).softmax(-1)

    def forward(self, u: Tensor) -> Tensor:
        v = at_least_fp32(self.value(u).flatten(2))  # [b, c, n]
        attended = v @ self.couplings(u).transpose(1, 2)  # [b, c, m]
        return u + (self.gamma * attended.view_as(u)).to(u.dtype)


class AACapsNet(LinearClassifier):
    """9x9 convolution -> primary capsules as in CapsNet -> attention over positions -> two linear layers -> logits."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        rows, columns = self.grid = primary_grid(task.img_size)
        self.stem = nn.Sequential(nn.Conv2d(task.in_chans, 256, 9), nn.ReLU())
        self.primary = nn.Conv2d(256, TYPES * D_IN, 9, stride=2)
        self.attention = PositionAttention(TYPES * D_IN)
        self.hidden = nn.Linear(TYPES * D_IN * rows * columns, HIDDEN)
        self.num_features = HIDDEN
        self.new_classifier(task.num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """-> hidden features [b, 128]."""
        return self.forward_intermediates(x)["hidden.0"]

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.0 [b, 256, h, w], primary.0 [b, n, d], hidden.0 [b, 128]."""
        fmap = run_block(self.stem, self.normalize(x), self.grad_checkpointing)
        u = squash(self.primary(fmap).unflatten(1, (-1, D_IN)).movedim(2, -1))  # [b, types, h, w, d]
        z = self.attention(u.movedim(-1, 2).flatten(1, 2).to(self.primary.weight.dtype))  # [b, types d, h, w]
        hidden = F.relu(self.hidden(z.flatten(1)))
        return {"map.0": fmap, "primary.0": u.flatten(1, 3), "hidden.0": hidden}

    def tensor_places(self) -> dict[str, tuple[int, int]]:
        return {"hidden.weight": self.grid}


class AACapsNetMargin(MarginClassifier, AACapsNet):
    """The same network with sigmoids and the margin loss."""


@register_model
def aa_capsnet(task: Task, *, loss: str = "margin") -> AACapsNet:
    if loss not in LOSSES:
        raise MspcapsError(f"the option loss of aa_capsnet is {loss!r:.80}, but must be {' or '.join(LOSSES)}")
    return AACapsNetMargin(task) if loss == "margin" else AACapsNet(task)
