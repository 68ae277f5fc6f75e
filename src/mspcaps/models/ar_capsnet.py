"""AR-CapsNet: maps of capsules routed by learnt attention, without iterations.

Paper: Choi, Seo, Im and Kang, "Attention routing between capsules", ICCV Workshops 2019.
Known, from the paper and the authors' code: all layers, the routing, the losses, the decoder and the initial weights.
Dropout is applied to the input of every routing, including the last, but not to the shortcut that is added before tanh.
Nine of the paper's ten counts for CIFAR-10 equal ours after rounding (for layers=2 we have 8.3 million, not 8.4).
Our reading: the code stops at three layers of convolutional capsules; the fourth, on CIFAR-10, repeats the third.
Differs from it: images are normalised inside the model, as everywhere in this library; BatchNorm has PyTorch's momentum
and epsilon; at stride 2 maps are padded on both sides, where Keras pads maps of even size on one side only; the decoder
starts as PyTorch initialises linear layers.
Parameters: 7,563,392 for 3 x 32 x 32 (9,566,336 with decoder). The MNIST model has layers=1: 4,483,328 for 1 x 28 x 28
(5,312,528), 5,712,128 for 1 x 32 x 32.
"""

from torch import Tensor, nn

from mspcaps.capsules import AttentionRouting, CapsuleAffine, ConvAttentionRouting, States
from mspcaps.capsules.routing.attention import glorot
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import BatchNorm, Dropout, check_img_size, run_block, start_like_keras
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

CHANNELS = 8  # capsules at each position of a map
PRIMARY_DIM = 16
DROPOUT = 0.5
RECONSTRUCTION = 0.3  # weight of the mean squared error


class ConvCaps(nn.Module):
    """Map of capsules [b, n, d, h, w] -> [b, n, e, h', w']: dropout, attention routing, at stride 1 with a shortcut."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        super().__init__()
        self.dropout = Dropout(DROPOUT)
        self.routing = ConvAttentionRouting(CHANNELS, d_in, CHANNELS, d_out, stride)
        self.residual = stride == 1

    def forward(self, u: Tensor, states: States | None = None) -> Tensor:
        return self.routing(self.dropout(u), states, shortcut=u if self.residual else None)


class ARCapsNet(CapsuleModel):
    """Two convolutions -> primary capsules -> convolutional capsules, the first at stride 2 -> class capsules."""

    hidden = (512, 512)

    def __init__(self, task: Task, layers: int, dim: int, decoder: bool) -> None:
        super().__init__(task)
        check_img_size(task.img_size)
        self.d_out = dim
        self.stem = nn.Sequential(
            conv3x3(task.in_chans, 64), BatchNorm(64), nn.ReLU(), conv3x3(64, 64), BatchNorm(64), nn.ReLU()
        )
        self.primary = nn.Sequential(conv3x3(64, CHANNELS * PRIMARY_DIM, stride=2), nn.ReLU())
        self.affine = CapsuleAffine(CHANNELS, PRIMARY_DIM)
        rows, columns = halved(task.img_size)
        self.num_features = CHANNELS * PRIMARY_DIM * rows * columns
        self.layers = nn.ModuleList(
            ConvCaps(dim if i else PRIMARY_DIM, dim, stride=1 if i else 2) for i in range(layers)
        )
        if layers:
            rows, columns = halved((rows, columns))
        d_in = dim if layers else PRIMARY_DIM
        self.positions = rows * columns
        self.dropout = Dropout(DROPOUT)
        self.routing = self.init_votes(AttentionRouting(CHANNELS, d_in * self.positions, task.num_classes, dim))
        self.decoder = self.new_decoder(task.num_classes) if decoder else None
        self.reconstruction = RECONSTRUCTION / task.numel

    def init_votes(self, routing: AttentionRouting) -> AttentionRouting:
        """Glorot's, for a convolution whose kernel is the whole map: every position counts for the outputs as well."""
        n_in, d_in, n_out, d_out = routing.w.shape
        glorot(routing.w.data, d_in, self.positions * n_in * n_out * d_out)
        return routing

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """Feature map [b, 64, h, w] -> primary capsules [b, 8, 16, h', w']."""
        s = self.primary(maps[0]).unflatten(1, (CHANNELS, PRIMARY_DIM))  # [b, n, d, h, w]
        return self.affine(s.movedim((1, 2), (3, 4))).tanh().movedim((3, 4), (1, 2))

    def route_blocks(self, features: Tensor, states: States | None = None) -> list[Tensor]:
        """-> the map of capsules of every layer, then the class capsules [b, num_classes, dim], divided by the largest
        length that tanh allows, so lengths are in [0, 1)."""
        u, maps = features, []
        for layer in self.layers:
            u = run_block(layer, u, self.grad_checkpointing) if states is None else layer(u, states)
            maps.append(u)
        return [*maps, self.routing(self.dropout(u).flatten(2), states) / self.d_out**0.5]

    def reconstruct(self, v: Tensor, y: Tensor) -> Tensor:
        return super().reconstruct(v * self.d_out**0.5, y)  # the decoder takes what tanh returned


def conv3x3(in_chans: int, out_chans: int, stride: int = 1) -> nn.Conv2d:
    return start_like_keras(nn.Conv2d(in_chans, out_chans, 3, stride, padding=1))


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Size of a map after a convolution of stride 2."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2


@register_model
def ar_capsnet(task: Task, *, layers: int = 4, dim: int = 32, decoder: bool = False) -> ARCapsNet:
    return ARCapsNet(task, layers, dim, decoder)
