"""ResNet for small images: the convolutional yardsticks of the benchmarks.

Paper: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2015; resnet20 is its section 4.2.
Differs from it: resnet18 is the usual CIFAR form of the ImageNet network (3x3 stem of stride 1, no max-pool). Where
resnet20 changes width, its shortcut takes every second pixel and appends zero channels after the others; the paper does
not say on which side. Convolutions start from He's normal distribution over the fan-out, the rest as in PyTorch.
Parameters (3 x 32 x 32, 10 classes): resnet20 269,722; resnet18 11,173,962.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.models.layers import ConvBN, Normalize, check_img_size, run_block
from mspcaps.models.model import LinearClassifier, Task
from mspcaps.models.registry import register_model

TOO_SMALL = "is smaller than one pixel of the last feature map"  # which would see mostly padding


class PadShortcut(nn.Module):
    """The paper's option A, without parameters: [b, c, h, w] -> [b, c + extra, ceil(h/stride), ceil(w/stride)]."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: relu(f(x) + shortcut(x))."""

    def __init__(self, in_chans: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.first = ConvBN(in_chans, width, stride)
        self.second = ConvBN(width, width)
        self.shortcut: nn.Module = nn.Identity()
        if (in_chans, stride) != (width, 1):
            self.shortcut = (
                ConvBN(in_chans, width, stride, kernel=1) if project else PadShortcut(width - in_chans, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(LinearClassifier):
    """3x3 stem -> stages of basic blocks, each but the first halving the map -> mean over the map -> linear layer.

    [b, in_chans, h, w] in [0, 1], of any size -> logits [b, num_classes].
    """

    def __init__(
        self,
        task: Task,
        widths: Sequence[int],  # of the stages
        blocks: int,  # per stage
        project: bool,  # whether shortcuts that change width are 1x1 convolutions (option B) or add zeros (option A)
    ) -> None:
        super().__init__(task)
        check_img_size(task.img_size, 2 ** (len(widths) - 1), TOO_SMALL)
        self.normalize = Normalize(task.mean, task.std)  # takes any image size
        self.stem = ConvBN(task.in_chans, widths[0])
        self.blocks, self.per_stage = nn.Sequential(), blocks
        chans = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(BasicBlock(chans, width, stride, project))
                chans = width
        self.num_features = chans
        self.new_classifier(task.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """-> the last feature map [b, width, h / s, w / s], s = 2^(stages - 1), rounded up."""
        return list(self.forward_intermediates(x).values())[-1]

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.i [b, width, h, w], the last map of every stage."""
        maps, x = {}, F.relu(self.stem(self.normalize(x)))
        for i, block in enumerate(self.blocks):
            x = run_block(block, x, self.grad_checkpointing)
            maps[f"map.{i // self.per_stage}"] = x
        return maps

    def forward_head(self, features: Tensor) -> Tensor:
        return super().forward_head(features.mean((2, 3)))


@register_model
def resnet20(task: Task) -> ResNet:
    return ResNet(task, widths=(16, 32, 64), blocks=3, project=False)


@register_model
def resnet18(task: Task) -> ResNet:
    return ResNet(task, widths=(64, 128, 256, 512), blocks=2, project=True)
