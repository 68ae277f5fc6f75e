"""DeepCaps: a deep network of convolutional capsules with skip connections.

Paper: Rajasegaran et al., "DeepCaps: Going Deeper with Capsule Networks", 2019; code: brjathu/deepcaps (Keras).
Known: all layers, both routings, the decoder, the loss and the initial weights. CIFAR-10 and SVHN are enlarged to
64 x 64, which gives 13,426,995 parameters with the decoder; others quote 13.42 or 13.5 million.
Our reading: the decoder doubles its map twice below 64 pixels and three times from 64 on, which gives both decoders of
the authors at their sizes; at other sizes its output is cropped to the image.
Differs from it: images are normalised inside the model, as everywhere in this library. BatchNorm has PyTorch's defaults
instead of Keras's, convolutions of stride 2 pad all four sides instead of two, normal distributions are not truncated,
and the decoder starts with PyTorch's initial weights. The authors' 3D routing reads its input in another order than it
is stored in, which mixes positions and capsules; ours does not. With soft targets the decoder gets the sum of the class
capsules weighted by them. There is no second training phase with stricter margins.
Parameters: 13,359,424 for 3 x 64 x 64 (13,426,995 with decoder), 8,444,224 for 3 x 32 x 32 (8,510,851),
8,441,920 for 1 x 28 x 28 (8,500,337).
"""

import itertools

import torch
from torch import Tensor, nn

from mspcaps.capsules import DynamicRouting, DynamicRouting3D, States, squash
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import BatchNorm, check_img_size, run_block, start_like_keras
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

TYPES = 32
D, D_OUT = 8, 32  # dimensions of the capsules that vote for the classes and of the class capsules
RECONSTRUCTION = 0.4  # weight of the mean squared error


class ConvCaps(nn.Module):
    """Map of capsules [b, n d_in, h, w] -> [b, n d, h / stride, w / stride]: 3x3 convolution, then squash over d."""

    def __init__(self, chans: int, d: int, stride: int = 1) -> None:
        super().__init__()
        self.d = d
        self.conv = nn.Conv2d(chans, TYPES * d, 3, stride, padding=1, bias=False)
        bound = (3 / self.conv.weight.numel() ** 0.5) ** 0.5  # Glorot's, as Keras computes it for six axes
        nn.init.uniform_(self.conv.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        s = self.conv(x)  # [b, n d, h, w]
        return squash(s.unflatten(1, (-1, self.d)), 2).flatten(1, 2).to(s.dtype)


class Cell(nn.Module):
    """[b, chans, h, w] -> [b, n d, h / 2, w / 2]: a ConvCaps of stride 2, then two in sequence and one in parallel."""

    def __init__(self, chans: int, d: int) -> None:
        super().__init__()
        self.down = ConvCaps(chans, d, stride=2)
        self.main = nn.Sequential(ConvCaps(TYPES * d, d), ConvCaps(TYPES * d, d))
        self.skip = ConvCaps(TYPES * d, d)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.main(x) + self.skip(x)


class RoutedCell(nn.Module):
    """The same with 3D routing as the parallel branch."""

    def __init__(self, chans: int, d: int, iterations: int, joint: bool) -> None:
        super().__init__()
        self.d = d
        self.down = ConvCaps(chans, d, stride=2)
        self.main = nn.Sequential(ConvCaps(TYPES * d, d), ConvCaps(TYPES * d, d))
        self.routing = DynamicRouting3D(d, TYPES, d, iterations, joint)

    def forward(self, x: Tensor, states: States | None = None) -> Tensor:
        x = self.down(x)
        routed = self.routing(x.unflatten(1, (-1, self.d)), states).flatten(1, 2)  # [b, n d, h, w]
        return self.main(x) + routed.to(x.dtype)


class ConvDecoder(nn.Module):
    """One class capsule [b, d] of any class -> images [b, in_chans, *img_size], not negative."""

    def __init__(self, d: int, in_chans: int, img_size: tuple[int, int]) -> None:
        super().__init__()
        self.img_size = img_size
        hidden = (64, 32, 16, 8) if max(img_size) >= 64 else (64, 32, 16)
        factor = 2 ** (len(hidden) - 1)
        self.grid = (-(-img_size[0] // factor), -(-img_size[1] // factor))
        self.linear = nn.Linear(d, 16 * self.grid[0] * self.grid[1])
        self.bn = BatchNorm(16)
        self.bn.momentum = 0.2  # 0.8 in Keras, which gives the weight of the old value
        layers = [nn.ConvTranspose2d(16, hidden[0], 3, padding=1)]
        for chans, out_chans in itertools.pairwise(hidden):
            layers.append(nn.ConvTranspose2d(chans, out_chans, 3, stride=2, padding=1, output_padding=1))
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(hidden[-1], in_chans, 3, padding=1), nn.ReLU())

    def forward(self, v: Tensor) -> Tensor:
        x = self.linear(v).relu().unflatten(1, (16, *self.grid))
        rows, columns = self.img_size
        return self.layers(self.bn(x))[:, :, :rows, :columns]


class DeepCaps(CapsuleModel):
    """Convolution -> four cells of convolutional capsules, the last with 3D routing -> dynamic routing -> classes."""

    def __init__(self, task: Task, iterations: int, joint: bool, decoder: bool) -> None:
        super().__init__(task)
        check_img_size(task.img_size)
        conv = start_like_keras(nn.Conv2d(task.in_chans, 128, 3, padding=1))
        self.stem = nn.Sequential(conv, nn.ReLU(), BatchNorm(128))
        self.cells = nn.ModuleList([Cell(128, 4), Cell(TYPES * 4, 8), Cell(TYPES * 8, 8)])
        self.last = RoutedCell(TYPES * 8, 8, iterations, joint)
        grids = [[-(-side // factor) for side in task.img_size] for factor in (16, 8)]
        n = sum(TYPES * rows * columns for rows, columns in grids)
        self.num_features = n * D
        self.routing = self.init_votes(DynamicRouting(n, D, task.num_classes, D_OUT, iterations, bias=True))
        self.decoder = self.new_decoder(task.num_classes) if decoder else None
        self.reconstruction = RECONSTRUCTION / task.numel

    def forward_maps(self, x: Tensor, states: States | None = None) -> list[Tensor]:
        """-> feature maps of the stem and of the four cells."""
        maps = [run_block(self.stem, self.normalize(x), self.grad_checkpointing)]
        for cell in self.cells:
            maps.append(run_block(cell, maps[-1], self.grad_checkpointing))
        if states is not None:
            return [*maps, self.last(maps[-1], states)]
        return [*maps, run_block(self.last, maps[-1], self.grad_checkpointing)]

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """-> capsules [b, n, d] of the last two cells, the coarser map first, ordered by position, then by type."""
        capsules = [m.unflatten(1, (TYPES, D)).permute(0, 3, 4, 1, 2).flatten(1, 3) for m in (maps[-1], maps[-2])]
        return torch.cat(capsules, 1)

    def forward_capsules(self, x: Tensor, states: States | None = None) -> Tensor:
        return self.route(self.make_capsules(self.forward_maps(x, states)), states)

    def decoder_input(self, v: Tensor, weights: Tensor) -> Tensor:
        """The capsule of the class alone: the decoder is not told which class it is."""
        return (v * weights.unsqueeze(-1)).sum(1)

    def new_decoder(self, num_classes: int) -> nn.Module:
        """Keeps an existing decoder: it does not depend on the number of classes."""
        return ConvDecoder(D_OUT, self.in_chans, self.img_size) if self.decoder is None else self.decoder

    def init_votes(self, routing: DynamicRouting) -> DynamicRouting:
        """Glorot's uniform distribution, as Keras computes it for [classes, n_in, d_out, d_in] and [classes, d_out]."""
        n_in, d_in, n_out, d_out = routing.w.shape
        bound = (6 / (n_out * n_in * (d_in + d_out))) ** 0.5
        nn.init.uniform_(routing.w, -bound, bound)
        if routing.bias is not None:
            nn.init.xavier_uniform_(routing.bias)
        return routing


@register_model
def deepcaps(task: Task, *, iterations: int = 3, joint: bool = True, decoder: bool = False) -> DeepCaps:
    return DeepCaps(task, iterations, joint, decoder)
