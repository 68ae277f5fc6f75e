"""RS-CapsNet: Res2Net blocks with squeeze-and-excitation, and linear combinations of capsules before the routing.

Paper: Yang, Lee, Miao, Cai, Chen, Yao, Kotani and Chen, "RS-CapsNet: An Advanced Capsule Network", 2020.
Known: we found neither its text nor its authors' code. Others quote 5.0M parameters and its accuracies. Recalled from
the abstract: Res2Net blocks, squeeze-and-excitation, capsules combined linearly so that fewer are routed, and dynamic
routing with the margin loss as in CapsNet.
Our reading: this is a reconstruction sized to the published count, not a reproduction. The number and widths of the
blocks, the types and dimensions of the capsules, a combination at every position followed by squash, and a decoder like
CapsNet's among the 5.0M parameters were all chosen with that figure in view.
Differs from it: nothing else is known. Images are normalised inside the model, as everywhere in this library.
Parameters: 1,251,388 for 3 x 32 x 32 (5,007,932 with decoder), 1,250,236 for 1 x 32 x 32 (2,907,580), 1,173,436 for
1 x 28 x 28 (2,584,780).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import DynamicRouting, squash
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import ConvBN, check_img_size, run_block
from mspcaps.models.model import Task, numbered
from mspcaps.models.registry import register_model
from mspcaps.models.resnet import TOO_SMALL

BLOCKS = ((64, 1), (128, 2), (256, 2))  # width, both inside a block and of its output, and stride
SCALES = 4  # groups of channels in a block, each with a larger receptive field than the one before
RATIO = 16  # channels per hidden unit of squeeze-and-excitation
TYPES, COMBINED = 32, 4  # capsules at a position, before and after the combination
D_IN = 8  # dimension of these capsules


class SqueezeExcitation(nn.Module):
    """Channels weighted by a small network that sees their means: [b, c, h, w] -> [b, c, h, w]."""

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(chans, chans // RATIO)
        self.excite = nn.Linear(chans // RATIO, chans)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()  # [b, c]
        return x * gate[..., None, None]


class Res2Block(nn.Module):
    """1x1 convolution -> a cascade of 3x3 convolutions over SCALES groups of channels -> 1x1 convolution ->
    squeeze-and-excitation, plus a shortcut: [b, c, h, w] -> [b, c', h', w'], halved and rounded up at stride 2.

    The first group is passed on unchanged; the third and fourth add the output of the group before to their input.
    As in Res2Net, at stride 2 the first group is averaged and nothing is added.
    """

    def __init__(self, in_chans: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = ConvBN(in_chans, width, kernel=1)
        self.groups = nn.ModuleList(ConvBN(width // SCALES, width // SCALES, stride) for _ in range(SCALES - 1))
        self.last = ConvBN(width, width, kernel=1)
        self.attention = SqueezeExcitation(width)
        same_shape = (in_chans, stride) == (width, 1)
        self.shortcut = nn.Identity() if same_shape else ConvBN(in_chans, width, stride, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = F.relu(self.first(x)).chunk(SCALES, 1)  # SCALES x [b, width / SCALES, h, w]
        outputs = [first if self.stride == 1 else F.avg_pool2d(first, 3, self.stride, padding=1)]
        for i, (conv, group) in enumerate(zip(self.groups, rest, strict=True)):
            conv_input = group + outputs[-1] if i > 0 and self.stride == 1 else group
            outputs.append(F.relu(conv(conv_input)))
        return F.relu(self.attention(self.last(torch.cat(outputs, 1))) + self.shortcut(x))


class RSCapsNet(CapsuleModel):
    """Stem -> Res2Net blocks -> primary capsules -> fewer, combined capsules per position -> dynamic routing."""

    d_out = 16

    def __init__(self, task: Task, iterations: int, decoder: bool) -> None:
        super().__init__(task)
        check_img_size(task.img_size, 4, TOO_SMALL)
        self.stem = nn.Sequential(ConvBN(task.in_chans, BLOCKS[0][0]), nn.ReLU())
        self.blocks = nn.Sequential()
        chans = BLOCKS[0][0]
        for width, stride in BLOCKS:
            self.blocks.append(Res2Block(chans, width, stride))
            chans = width
        self.primary = nn.Conv2d(chans, TYPES * D_IN, 3, padding=1)
        self.combination = nn.Parameter(torch.randn(COMBINED, TYPES) / TYPES**0.5)
        rows, columns = (-(-side // 4) for side in task.img_size)
        n = COMBINED * rows * columns
        self.num_features = n * D_IN
        self.routing = self.init_votes(DynamicRouting(n, D_IN, task.num_classes, self.d_out, iterations))
        self.decoder = self.new_decoder(task.num_classes) if decoder else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """-> the feature map of every block, [b, width, h, w]."""
        maps = [run_block(self.stem, self.normalize(x), self.grad_checkpointing)]
        for block in self.blocks:
            maps.append(run_block(block, maps[-1], self.grad_checkpointing))
        return maps[1:]

    def make_primary(self, fmap: Tensor) -> Tensor:
        """The last feature map -> primary capsules [b, types, h, w, d]."""
        return squash(self.primary(fmap).unflatten(1, (-1, D_IN)).movedim(2, -1))

    def combine(self, u: Tensor) -> Tensor:
        """Primary capsules [b, types, h, w, d] -> combined capsules [b, n, d], ordered by type, then by position."""
        combined = at_least_fp32(self.combination.to(u.dtype) @ u.flatten(2))  # [b, 4, h w d]
        return squash(combined.unflatten(2, (-1, D_IN))).flatten(1, 2)

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """-> combined capsules [b, n, d]."""
        return self.combine(self.make_primary(maps[-1]))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.0 to map.2 [b, width, h, w], primary.0 and combined.0 [b, n, d], routed.0 [b, K, d_out]."""
        maps = self.forward_maps(x)
        u = self.make_primary(maps[-1])
        combined = self.combine(u)
        capsules = {"primary.0": u.flatten(1, 3), "combined.0": combined, "routed.0": self.route(combined)}
        return numbered("map", maps) | capsules

    def init_votes(self, routing: DynamicRouting) -> DynamicRouting:
        nn.init.normal_(routing.w, std=0.05)
        return routing


@register_model
def rs_capsnet(task: Task, *, iterations: int = 3, decoder: bool = False) -> RSCapsNet:
    return RSCapsNet(task, iterations, decoder)
