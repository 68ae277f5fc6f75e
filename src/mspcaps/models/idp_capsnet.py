"""IDP-CapsNet: capsules with inverted dot-product attention routing, on the simple backbone.

Paper: Tsai et al., "Capsules with Inverted Dot-Product Attention Routing", 2020; code:
apple/ml-capsules-inverted-attention-routing.
Known: all layers (Table 8 of the paper), the routing, the division of agreements by the square root of the pose size,
the initial weights, and the paper's count of 0.56 million parameters. One linear layer, shared by the class capsules,
turns each into a logit; its bias shifts all logits alike, so cross-entropy gives it no gradient.
Our reading: two routing passes by default, for which the paper gives 85.05 %; its best is 85.17 %, with four.
Differs from it: images are normalised inside the model, as everywhere in this library. The authors' code extracts
windows in an order that mixes positions with entries of a pose; ours does not. Capsules that no longer reach a class
capsule, such as the convolutional capsules of the last pass, are not computed.
Parameters: 561,297 for 3 x 32 x 32, 556,689 for 1 x 32 x 32, 510,609 for 1 x 28 x 28.
"""

from torch import Tensor, nn

from mspcaps.capsules import InvertedAttentionRouting, States
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import check_img_size, run_block
from mspcaps.models.model import Model, Task
from mspcaps.models.registry import register_model

TYPES = 32
POSE = 16  # entries of a pose, a matrix of 4 x 4
SMALLEST = 13  # pixels a side that leave one position: 13 -> 7 -> 3 -> 1


class PrimaryCaps(nn.Module):
    """Feature map [b, c, h, w] -> capsules [b, h, w, types, 16]: 1x1 convolution, then LayerNorm of each capsule."""

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(chans, TYPES * POSE, 1, bias=False)
        self.norm = nn.LayerNorm(POSE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).permute(0, 2, 3, 1).unflatten(-1, (TYPES, POSE)))


class IDPCapsNet(CapsuleModel):
    """Convolution -> primary capsules -> two layers of convolutional capsules -> class capsules -> logits.

    The first pass computes each layer from the one below it. Each later pass updates all layers at once, from the
    values that they and the layers below them had in the previous pass.
    """

    scores = "logits"
    criterion = staticmethod(Model.criterion)

    def __init__(self, task: Task, iterations: int) -> None:
        super().__init__(task)
        self.iterations = iterations
        rows, columns = ((side + 1) // 2 for side in task.img_size)
        self.stem = nn.Sequential(nn.Conv2d(task.in_chans, 256, 3, stride=2, padding=1), nn.ReLU())
        self.primary = PrimaryCaps(256)
        self.lower = InvertedAttentionRouting(TYPES, TYPES, (3, 3), stride=2)
        self.upper = InvertedAttentionRouting(TYPES, TYPES, (3, 3))
        grid = self.upper.out_grid(*self.lower.out_grid(rows, columns))
        check_img_size(task.img_size, SMALLEST)
        self.routing = InvertedAttentionRouting(TYPES, task.num_classes, grid)
        self.head = nn.Linear(POSE, 1)
        self.num_features = max(1, iterations - 1) * grid[0] * grid[1] * TYPES * POSE

    def make_capsules(self, maps: list[Tensor], states: States | None = None) -> list[Tensor]:
        """-> the upper convolutional capsules [b, h, w, types, 16] of every pass that the class capsules use.

        A layer is updated only as long as the layer above it still uses the result.
        """
        u = run_block(self.primary, maps[0], self.grad_checkpointing)
        lower = self.lower(u)
        passes = [self.upper(lower)]
        for step in range(2, self.iterations):  # the class capsules of pass t use pass t - 1
            upper = self.upper(lower, passes[-1], states if step == self.iterations - 1 else None)
            if step < self.iterations - 1:
                lower = self.lower(u, lower, states if step == self.iterations - 2 else None)
            passes.append(upper)
        return passes

    def route_blocks(self, features: list[Tensor], states: States | None = None) -> list[Tensor]:
        """-> class capsules [b, num_classes, 16]."""
        v = self.routing(features[0])  # [b, 1, 1, K, 16]
        for step in range(2, self.iterations + 1):
            v = self.routing(features[step - 2], v, states if step == self.iterations else None)
        return [v.flatten(1, 3)]

    def forward_capsules(self, x: Tensor, states: States | None = None) -> Tensor:
        """-> class capsules [b, num_classes, 16]. Only blocks that compute couplings append to `states`: with two
        passes the last block alone, with four all three."""
        return self.route(self.make_capsules(self.forward_maps(x), states), states)

    def forward_head(self, features: list[Tensor]) -> Tensor:
        """-> logits [b, num_classes]."""
        return self.head(self.route(features)).squeeze(-1)


@register_model
def idp_capsnet(task: Task, *, iterations: int = 2) -> IDPCapsNet:
    return IDPCapsNet(task, iterations)
