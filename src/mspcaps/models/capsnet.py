"""CapsNet: the first capsule network with dynamic routing.

Paper: Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", 2017.
Known: all layers, the routing, the margin loss, the decoder, and both of the paper's counts for MNIST.
Our reading: vote matrices start from a normal distribution of deviation 0.1, as in the authors' code. That code also
adds a bias to the class capsules, which neither the paper nor its counts have, nor have we.
Differs from it: images are normalised inside the model, as everywhere in this library.
Parameters: 6,804,224 for 1 x 28 x 28 (8,215,568 with decoder), 7,992,576 for 3 x 32 x 32 (11,749,120).
"""

from torch import Tensor, nn

from mspcaps.capsules import DynamicRouting, States, squash
from mspcaps.models.capsule_model import CapsuleModel, Decoder
from mspcaps.models.layers import check_img_size, run_block
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

SMALLEST = 17  # pixels a side that leave one capsule: two kernels of 9 without padding


class CapsNet(CapsuleModel):
    """9x9 convolution -> primary capsules from a 9x9 convolution of stride 2 -> dynamic routing -> class capsules."""

    def __init__(
        self, task: Task, iterations: int, decoder: bool, types: int = 32, d_in: int = 8, d_out: int = 16
    ) -> None:
        super().__init__(task)
        rows, columns = (((side - 8) - 9) // 2 + 1 for side in task.img_size)
        check_img_size(task.img_size, SMALLEST)
        self.d_in, self.d_out = d_in, d_out
        self.stem = nn.Sequential(nn.Conv2d(task.in_chans, 256, 9), nn.ReLU())
        self.primary = nn.Conv2d(256, types * d_in, 9, stride=2)
        self.num_features = types * rows * columns * d_in
        self.routing = DynamicRouting(types * rows * columns, d_in, task.num_classes, d_out, iterations)
        nn.init.normal_(self.routing.w, std=0.1)
        self.task = task
        self.decoder = Decoder(task.num_classes * d_out, task) if decoder else None

    def forward_stem(self, x: Tensor) -> Tensor:
        """-> feature map [b, 256, h, w]."""
        return run_block(self.stem, self.normalize(x), self.grad_checkpointing)

    def forward_features(self, x: Tensor) -> Tensor:
        """-> primary capsules [b, n, d], n counts positions within types."""
        u = self.primary(self.forward_stem(x))  # [b, types d, h, w]
        u = u.unflatten(1, (-1, self.d_in)).movedim(2, -1)  # [b, types, h, w, d]
        return squash(u.flatten(1, 3))

    def route(self, features: Tensor, states: States | None = None) -> Tensor:
        """-> class capsules [b, num_classes, d_out]."""
        return self.routing(features, states)

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.0 [b, 256, h, w], primary.0 [b, n, d], routed.0 [b, K, d]."""
        u = self.forward_features(x)
        return {"map.0": self.forward_stem(x), "primary.0": u, "routed.0": self.routing(u)}

    def get_classifier(self) -> nn.Module:
        return self.routing

    def new_classifier(self, num_classes: int) -> None:
        self.routing = self.routing.with_outputs(num_classes)
        nn.init.normal_(self.routing.w, std=0.1)
        if self.decoder is not None:
            old = next(self.decoder.parameters())
            self.decoder = Decoder(num_classes * self.d_out, self.task).to(old.device, old.dtype)


@register_model
def capsnet(task: Task, *, iterations: int = 3, decoder: bool = False) -> CapsNet:
    return CapsNet(task, iterations, decoder)
