"""Efficient-CapsNet: a small capsule network that routes by a single pass of self-attention.

Paper: Mazzia, Salvetti and Chiaberge, "Efficient-CapsNet: Capsule Network with Self-Attention Routing", 2021.
Known, from the paper and the authors' code: all layers (convolution, ReLU, BatchNorm, in this order), the routing, the
losses, the decoder, the initial weights and the parameter count for MNIST.
Our reading: where paper and code differ, we follow the code: agreements are divided by the square root of the output
dimension. The kernel of the primary capsules covers the whole last map at every image size: 9 x 9 at 28 pixels, as in
the authors' code, and 11 x 11 at 32, as in code by others for CIFAR-10. The reconstruction loss is 0.392 times the mean
squared error at every size.
Differs from it: images are normalised inside the model, as everywhere in this library. BatchNorm has PyTorch's momentum
and epsilon, normal distributions are not truncated, and the decoder starts with PyTorch's initial weights.
Parameters: 161,824 for 1 x 28 x 28 (1,573,168 with decoder), 166,944 for 1 x 32 x 32, 168,544 for 3 x 32 x 32
(3,925,088). The 162,400 that others print for MNIST includes the 576 running statistics of BatchNorm.
"""

import math

from torch import Tensor, nn

from mspcaps.capsules import SelfAttentionRouting, exponential_squash
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import BatchNorm, check_img_size, start_like_keras
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

SMALLEST = 11  # pixels a side: kernels of 5, 3, 3 and 3 without padding then leave a map of 1 x 1
STEM = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))  # channels, kernel, stride
RECONSTRUCTION = 0.392  # weight of the mean squared error
D_IN = 8  # dimension of a primary capsule


class EfficientCapsNet(CapsuleModel):
    """Four convolutions -> primary capsules from a depthwise kernel as large as the map -> self-attention routing."""

    d_out = 16

    def __init__(self, task: Task, decoder: bool) -> None:
        super().__init__(task)
        rows, columns = ((side - 8 - 3) // 2 + 1 for side in task.img_size)
        check_img_size(task.img_size, SMALLEST)
        layers: list[nn.Module] = []
        chans = task.in_chans
        for width, kernel, stride in STEM:
            conv = nn.Conv2d(chans, width, kernel, stride)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers += [conv, nn.ReLU(), BatchNorm(width)]
            chans = width
        self.stem = nn.Sequential(*layers)
        self.primary = start_like_keras(nn.Conv2d(chans, chans, (rows, columns), groups=chans))  # depthwise
        self.num_features = chans
        self.routing = self.init_votes(SelfAttentionRouting(chans // D_IN, D_IN, task.num_classes, self.d_out))
        self.decoder = self.new_decoder(task.num_classes) if decoder else None
        self.reconstruction = RECONSTRUCTION / task.numel

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """Feature map [b, 128, h, w] -> primary capsules [b, 16, 8]."""
        return exponential_squash(self.primary(maps[0]).flatten(1).unflatten(1, (-1, D_IN)))

    def init_votes(self, routing: SelfAttentionRouting) -> SelfAttentionRouting:
        """He's standard deviation as Keras computes it for four axes: all but the output dimension count as inputs."""
        n_in, d_in, n_out, _ = routing.w.shape
        nn.init.normal_(routing.w, std=math.sqrt(2 / (n_in * d_in * n_out)))
        return routing


@register_model
def efficient_capsnet(task: Task, *, decoder: bool = False) -> EfficientCapsNet:
    return EfficientCapsNet(task, decoder)
