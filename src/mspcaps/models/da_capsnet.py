"""DA-CapsNet: attention over the channels of the last feature map and over the capsules that vote.

Paper: Huang and Zhou, "DA-CapsNet: dual attention mechanism capsule network", 2020.
Known: the convolutions, both attentions, shared vote matrices, dynamic routing, the margin loss and the decoder. Squash
has the constant 0.5 of the Keras example that the paper says it modifies. The paper gives no count; others quote 7M.
Our reading: three iterations, as in that example. The paper contradicts itself about images of 32 pixels: the last map
has 128 channels in its figures and text, while its Table 3 adds a convolution with 256. The default follows figures and
text. `extra_conv=True` is Table 3, a reconstruction sized to the published count: two rows of 128 values at every
position, and an attention as wide as the number of rows, were chosen because they give 7.1M with decoder. The weight of
the reconstruction is CapsNet's. `accumulate=False` replaces the logits in every iteration, as the Keras example does,
instead of adding to them, as the paper's equation does. The MNIST model for 28 pixels has `kernel=2` in the second pair
of convolutions.
Differs from it: images are normalised inside the model, as everywhere in this library.
Parameters: 1,923,864 for 3 x 32 x 32 (5,680,408 with decoder), 3,345,472 with the extra convolution (7,102,016),
1,799,832 for 1 x 28 x 28 with kernels of 2 (3,211,176).
"""

from torch import Tensor, nn

from mspcaps.capsules import DualAttentionRouting
from mspcaps.capsules.routing.dual_attention import Gate
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import check_img_size, run_block, start_like_keras
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model

ROW = 128  # values of a row, the input capsule of the routing


class ChannelAttention(nn.Module):
    """Channels gated by their means: [b, c, h, w] -> [b, c, h, w]."""

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.gate = Gate(chans, chans)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[..., None, None]


class DACapsNet(CapsuleModel):
    """Convolutions -> channel attention -> rows of 128 values -> votes -> attention over rows -> dynamic routing."""

    d_out = 16

    def __init__(
        self, task: Task, iterations: int, decoder: bool, extra_conv: bool, kernel: int, accumulate: bool
    ) -> None:
        super().__init__(task)
        shrinkage = 2 * (kernel - 1) + 2 * extra_conv  # of the pooled map, in pixels: nothing is padded
        rows, columns = ((side - 4) // 2 - shrinkage for side in task.img_size)
        check_img_size(task.img_size, 4 + 2 * (1 + shrinkage))
        self.fine = nn.Sequential(nn.Conv2d(task.in_chans, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
        coarse = [nn.Conv2d(64, 128, kernel), nn.ReLU(), nn.Conv2d(128, 128, kernel), nn.ReLU()]
        extra = [nn.Conv2d(128, 256, 3), nn.ReLU()] if extra_conv else []
        self.coarse = nn.Sequential(nn.AvgPool2d(2), *coarse, *extra)
        chans = 256 if extra_conv else 128
        self.attention = ChannelAttention(chans)
        self.num_features = rows * columns * chans
        self.routing = DualAttentionRouting(
            self.num_features // ROW, ROW, task.num_classes, self.d_out, iterations, accumulate
        )
        self.decoder = self.new_decoder(task.num_classes) if decoder else None
        for module in (*self.fine, *self.coarse):
            if isinstance(module, nn.Conv2d):
                start_like_keras(module)

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """-> feature maps [b, 64, h, w] and, after channel attention, [b, c, h, w]."""
        fine = run_block(self.fine, self.normalize(x), self.grad_checkpointing)
        return [fine, self.attention(run_block(self.coarse, fine, self.grad_checkpointing))]

    def make_capsules(self, maps: list[Tensor]) -> Tensor:
        """The last map [b, c, h, w] -> rows [b, i, 128], those of a position next to each other."""
        return maps[-1].movedim(1, -1).flatten(1).unflatten(1, (-1, ROW))


@register_model
def da_capsnet(
    task: Task, *, iterations: int = 3, decoder: bool = False, extra_conv: bool = False, kernel: int = 3,
    accumulate: bool = True,
) -> DACapsNet:  # fmt: skip
    return DACapsNet(task, iterations, decoder, extra_conv, kernel, accumulate)
