"""CapsNet: the first capsule network with dynamic routing.

Paper: Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", 2017.
Known: all layers, the routing, the margin loss, the decoder, and both parameter counts that the paper gives for MNIST.
Our reading: vote matrices start from a normal distribution with a standard deviation of 0.1, as in the authors' code,
which truncates it. That code also adds a bias to the class capsules; the paper and its counts have none, nor do we.
Differs from it: images are normalised inside the model, as everywhere in this library. Convolutions start as PyTorch
initialises them: with the larger weights of the authors' code almost all primary capsules start at length one.
Parameters: 6,804,224 for 1 x 28 x 28 (8,215,568 with decoder), 7,992,576 for 3 x 32 x 32 (11,749,120).

`capsnet_cifar` is one of the seven networks that the authors combined for CIFAR-10, as in their code: padded
convolutions, twice as many capsule types, a bias added to the class capsules, and leaky routing, in which a vote may go
to none of the classes. It sees only the central 24 x 24 pixels, so a shift by up to four pixels has the effect of their
random crop. Each window is standardised on its own, in addition to the usual normalisation.
Parameters: 22,476,448 for 3 x 32 x 32, and for any larger image.
"""

from torch import Tensor, nn

from mspcaps.capsules import DynamicRouting, squash
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import check_img_size, run_block
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

D_IN = 8  # dimension of a primary capsule
SMALLEST = 17  # pixels a side: two 9x9 kernels without padding then leave one capsule
WINDOW = 24  # pixels a side that capsnet_cifar sees


class CapsNet(CapsuleModel):
    """9x9 convolution -> primary capsules from a 9x9 convolution of stride 2 -> dynamic routing -> class capsules."""

    padding = 0
    leaky = False
    d_out = 16

    def __init__(self, task: Task, iterations: int, decoder: bool = False, types: int = 32) -> None:
        super().__init__(task)
        rows, columns = self.grid(task.img_size)
        self.stem = nn.Sequential(nn.Conv2d(task.in_chans, 256, 9, padding=self.padding), nn.ReLU())
        self.primary = nn.Conv2d(256, types * D_IN, 9, stride=2, padding=self.padding)
        n = types * rows * columns
        self.num_features = n * D_IN
        routing = DynamicRouting(n, D_IN, task.num_classes, self.d_out, iterations, bias=self.leaky, leaky=self.leaky)
        self.routing = self.init_votes(routing)
        self.decoder = self.new_decoder(task.num_classes) if decoder else None

    def grid(self, img_size: tuple[int, int]) -> tuple[int, int]:
        return primary_grid(img_size)

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """-> primary capsules [b, n, d], ordered by type, then by position."""
        u = self.primary(maps[0]).unflatten(1, (-1, D_IN)).movedim(2, -1)  # [b, types, h, w, d]
        return squash(u.flatten(1, 3))

    def init_votes(self, routing: DynamicRouting) -> DynamicRouting:
        nn.init.normal_(routing.w, std=0.1)
        if routing.bias is not None:
            nn.init.constant_(routing.bias, 0.1)
        return routing


class CapsNetCIFAR(CapsNet):
    """The same with padding and leaky routing, on the centre of the image."""

    padding = 4
    leaky = True

    def grid(self, img_size: tuple[int, int]) -> tuple[int, int]:
        check_img_size(img_size)
        rows, columns = (-(-min(side, WINDOW) // 2) for side in img_size)
        return rows, columns

    def tensor_places(self) -> dict[str, tuple[int, int]]:
        return {"routing.w": self.grid(self.img_size)}  # the grid of the window, whatever the image size

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """-> feature map [b, 256, h, w] of the window."""
        top, left = (max(0, side - WINDOW) // 2 for side in self.img_size)
        window = self.normalize(x)[..., top : top + WINDOW, left : left + WINDOW]
        return [run_block(self.stem, standardize(window).to(window.dtype), self.grad_checkpointing)]


def primary_grid(img_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of primary capsules; refuses an image that leaves none."""
    check_img_size(img_size, SMALLEST)
    rows, columns = ((side - SMALLEST) // 2 + 1 for side in img_size)
    return rows, columns


def standardize(x: Tensor) -> Tensor:
    """[b, c, h, w]: subtracts the mean of each image and divides by its standard deviation, or by 1 / sqrt(c h w) if
    that is larger, as TensorFlow does."""
    x = at_least_fp32(x)
    mean = x.mean((1, 2, 3), keepdim=True)
    variance = (x - mean).square().mean((1, 2, 3), keepdim=True)  # [b, 1, 1, 1]
    return (x - mean) * variance.clamp_min(1 / x[0].numel()).rsqrt()


@register_model
def capsnet(task: Task, *, iterations: int = 3, decoder: bool = False) -> CapsNet:
    return CapsNet(task, iterations, decoder)


@register_model
def capsnet_cifar(task: Task, *, iterations: int = 3) -> CapsNet:
    return CapsNetCIFAR(task, iterations, types=64)
