"""OrthCaps: similar capsules are pruned, the others attend to each other sparsely and through orthogonal matrices.

Paper: Geng et al., "OrthCaps: An Orthogonal CapsNet with Sparse Attention Routing and Pruning", CVPR 2024. There is no
public code: the repository named in the paper holds only a README.
Known: capsules of 16 dimensions, a backbone of four convolutions, maps of 64 x 16 x 16, depthwise convolutions in
capsule layers, Householder matrices, 1.5-entmax, 16 heads, pruning above a cosine of 0.7, margin loss, no decoder,
dropout of 0.25. S: primary capsules from a 9 x 9 kernel, two capsule layers for CIFAR-10 and none for MNIST. D: primary
capsules from a 3 x 3 kernel, seven blocks of three layers with shortcuts, and routing between blocks.
Our reading: everything else, chosen to match the printed 105.5K (MNIST) and 574K. The widths and kernels of the
backbone. BatchNorm after every convolution. Pruning compares all capsules of an image, whatever their type or position.
In D, a head for every output capsule. Before the class votes, a depthwise kernel over the whole last map (S) or its
mean (D), then dropout. Votes weighted by self-attention with entmax; their matrices start with He's standard deviation,
counting all capsules that vote for a class. In capsule layers other than the primary one, BatchNorm's biases start from
a normal distribution. The paper counts parameters after pruning, which a mask for each image cannot explain.
Differs from it: LayerNorm before each routing of D, without which it does not train. Images are normalised inside the
model, as everywhere in this library.
`orthcaps_s` has the two capsule layers unless its images have one channel: the paper's models for CIFAR-10 and MNIST.
Parameters: orthcaps_s 105,504 for 1 x 32 x 32 (101,920 for 1 x 28 x 28), 128,224 for 3 x 32 x 32; orthcaps_d 572,416
and 574,016.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mspcaps.capsules import (
    OrthogonalAttentionRouting,
    SimplifiedOrthogonalRouting,
    SparseAttentionRouting,
    States,
    length,
    squash,
)
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import BatchNorm, Dropout, check_img_size, run_block
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

SMALLEST = 17  # pixels a side for S: its 9 x 9 kernel needs a map of 9 x 9
STEM = ((32, 5, 1), (32, 3, 1), (64, 3, 1), (64, 3, 2))  # channels, kernel, stride
D = 16  # dimension of every capsule
THETA = 0.7  # capsules with a larger cosine are considered similar
BLOCKS = 7  # in OrthCaps-D, of three layers each


def as_capsules(x: Tensor) -> Tensor:
    """Map [b, n d, h, w] -> capsules [b, h, w, n, d]."""
    return x.movedim(1, -1).unflatten(-1, (-1, D))


def as_map(u: Tensor) -> Tensor:
    """Capsules [b, h, w, n, d] -> map [b, n d, h, w]."""
    return u.flatten(-2).movedim(-1, 1)


class ConvCaps(nn.Module):
    """Map [b, n d, h, w] -> [b, n' d, h', w']: convolution, depthwise or not, BatchNorm, squash."""

    def __init__(
        self, chans: int, out_chans: int, kernel: int | tuple[int, int], stride: int = 1, padding: int = 0,
        depthwise: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        groups = chans if depthwise else 1
        self.conv = nn.Conv2d(chans, out_chans, kernel, stride, padding, groups=groups, bias=False)
        self.bn = BatchNorm(out_chans)
        # With zero biases the lengths of the class capsules would be the same for a feature map and its negative:
        # nothing linear in the features could be learnt until the biases have grown.
        nn.init.normal_(self.bn.bias)

    def forward(self, x: Tensor) -> Tensor:
        return as_map(squash(as_capsules(self.bn(self.conv(x.to(self.conv.weight.dtype))))))


class Routed(nn.Module):
    """Map [b, n d, h, w] -> map [b, n_out d, h, w]: the capsules at each position are routed on their own."""

    def __init__(self, routing: nn.Module) -> None:
        super().__init__()
        self.routing = routing

    def forward(self, x: Tensor) -> Tensor:
        return as_map(self.routing(as_capsules(x)))


class Block(nn.Module):
    """Three layers, each a depthwise 3 x 3 convolution and a complete routing; shortcuts around the last two."""

    def __init__(self, chans: int, out_chans: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                ConvCaps(chans if i == 0 else out_chans, out_chans, 3, stride if i == 0 else 1, padding=1),
                Routed(OrthogonalAttentionRouting(D, out_chans // D)),
            )
            for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.layers
        a = first(x)
        for layer in others:
            a = a + layer(a)
        return a


def prune(x: Tensor, theta: float = THETA) -> Tensor:
    """Map [b, n d, h, w]: sets a capsule to zero if a longer one of the same image has a cosine above theta with it."""
    u = x.unflatten(1, (-1, D))  # [b, n, d, h, w]
    capsules = u.detach().flatten(3).mT  # [b, n, h w, d]
    lengths = length(capsules)  # [b, n, h w]
    directions = capsules / lengths.unsqueeze(-1)
    all_lengths, all_directions = lengths.flatten(1).unsqueeze(1), directions.flatten(1, 2)
    masks = []
    for t in range(u.shape[1]):  # one type at a time: all cosines at once would be by far the largest tensor
        cosines = directions[:, t] @ all_directions.mT  # [b, h w, n h w]
        longer = all_lengths > lengths[:, t].unsqueeze(-1)
        masks.append(~((cosines > theta) & longer).any(-1))  # True where a capsule is kept
    mask = torch.stack(masks, 1).unflatten(-1, u.shape[3:]).unsqueeze(2)  # [b, n, 1, h, w]
    return (u * mask.to(u.dtype)).flatten(1, 2)


class OrthCaps(CapsuleModel):
    """Four convolutions -> primary capsules -> pruning -> capsule layers -> flat capsules -> votes for the classes."""

    def __init__(self, task: Task, primary: ConvCaps, layers: Iterable[nn.Module], flat: nn.Module, types: int) -> None:
        super().__init__(task)
        stem: list[nn.Module] = []
        chans = task.in_chans
        for width, kernel, stride in STEM:
            conv = nn.Conv2d(chans, width, kernel, stride, kernel // 2, bias=False)
            stem += [conv, BatchNorm(width), nn.ReLU()]
            chans = width
        self.stem = nn.Sequential(*stem)
        self.primary, self.layers, self.flat = primary, nn.ModuleList(layers), flat
        nn.init.zeros_(primary.bn.bias)  # a direction shared by all positions would make pruning remove most capsules
        self.num_features = types * D
        self.dropout = Dropout(0.25)
        self.routing = SparseAttentionRouting(types, D, task.num_classes, D)

    def forward_layers(self, x: Tensor) -> Tensor:
        """Pruned capsules [b, n d, h, w] -> flat capsules [b, types, d]."""
        for layer in self.layers:
            x = run_block(layer, x, self.grad_checkpointing)
        return self.flat(x).flatten(1).unflatten(1, (-1, D))

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """-> flat capsules [b, types, d]."""
        return self.forward_layers(prune(self.primary(maps[0])))

    def route_blocks(self, features: Tensor, states: States | None = None) -> list[Tensor]:
        """-> class capsules [b, num_classes, d]."""
        return [self.routing(self.dropout(features), states)]

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.0 [b, 64, h, w], primary.0 [b, n h w, d], flat.0 [b, types, d], routed.0 [b, K, d]."""
        (fmap,) = self.forward_maps(x)
        primary = prune(self.primary(fmap))
        flat = self.forward_layers(primary)
        capsules = primary.unflatten(1, (-1, D)).movedim(2, -1).flatten(1, 3)
        return {"map.0": fmap, "primary.0": capsules, "flat.0": flat, "routed.0": self.route(flat)}

    def no_weight_decay(self) -> set[str]:
        """The vectors of the Householder matrices: their length has no effect."""
        return {name for name, _ in self.named_parameters() if name.endswith(".reflections")}

    def fp32_parameters(self) -> set[str]:
        """The vectors of the Householder matrices: a matrix multiplies sixteen reflections, and their errors add up."""
        return self.no_weight_decay()


@register_model
def orthcaps_s(task: Task) -> OrthCaps:
    sides = [(side + 1) // 2 - 8 for side in task.img_size]
    check_img_size(task.img_size, SMALLEST)
    primary, types = ConvCaps(64, 8 * D, 9), 8
    layers: list[nn.Module] = [Routed(SimplifiedOrthogonalRouting(D))]
    if task.in_chans > 1:
        layers[:0] = [ConvCaps(8 * D, 8 * D, 3, padding=1)]
        layers += [ConvCaps(8 * D, 16 * D, 3, stride=2, padding=1), Routed(SimplifiedOrthogonalRouting(D))]
        sides, types = [(side + 1) // 2 for side in sides], 16
    return OrthCaps(task, primary, layers, ConvCaps(types * D, types * D, (sides[0], sides[1])), types)


@register_model
def orthcaps_d(task: Task) -> OrthCaps:
    check_img_size(task.img_size)
    layers: list[nn.Module] = [Block(8 * D, 16 * D, stride=2)]
    for _ in range(BLOCKS - 1):
        layers += [Routed(OrthogonalAttentionRouting(D, 16)), Block(16 * D, 16 * D, stride=1)]
    return OrthCaps(task, ConvCaps(64, 8 * D, 3, padding=1, depthwise=False), layers, nn.AdaptiveAvgPool2d(1), 16)
