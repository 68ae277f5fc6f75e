"""What networks with class capsules share: lengths as scores, the margin loss, and an optional decoder."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from mspcaps.capsules import RoutingState, States, length, margin_loss
from mspcaps.capsules.losses import soft_targets
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError
from mspcaps.models.layers import run_block
from mspcaps.models.model import Criterion, Model, Task, numbered


class Decoder(nn.Sequential):
    """CapsNet's decoder: flattened class capsules [b, K d], all but one class set to zero -> pixels in [0, 1]."""

    def __init__(self, inputs: int, numel: int, hidden: tuple[int, int]) -> None:
        first, second = hidden
        layers = (nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())
        super().__init__(*layers, nn.Linear(second, numel), nn.Sigmoid())


class CapsuleModel(Model):
    """Images -> feature maps -> capsules -> class capsules, whose lengths are the scores.

    A family implements `make_capsules` and sets `self.stem` and `self.routing`. It overrides `forward_maps` if it has
    more feature maps than the stem's, and `route_blocks` if it has more than one routing block. With a decoder it sets
    `self.d_out` and `self.decoder`, and `hidden` and `reconstruction` if they differ from CapsNet's.
    """

    scores: ClassVar[Literal["lengths", "logits"]] = "lengths"
    stem: nn.Module
    routing: Any
    scales: tuple[int, ...] = (0,)  # of the feature maps; each has half the resolution of the one before
    d_out: int  # dimension of a class capsule
    hidden = (512, 1024)  # widths of the decoder's hidden layers
    reconstruction = 0.0005  # weight of its squared error, which is summed over the pixels

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.decoder: nn.Module | None = None

    @staticmethod
    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        return margin_loss(scores, y)

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """-> feature maps [b, c, h, w], finest first."""
        return [run_block(self.stem, self.normalize(x), self.grad_checkpointing)]

    @abstractmethod
    def make_capsules(self, maps: list[Tensor]) -> Any:
        """Feature maps -> the capsules to route: a tensor, or a list of them."""

    def route_blocks(self, features: Any, states: States | None = None) -> list[Tensor]:
        """-> the output of every routing block, class capsules last; each appends its state to `states` if given."""
        return [self.routing(features, states)]

    def route(self, features: Any, states: States | None = None) -> Tensor:
        """-> class capsules [b, num_classes, d]; `states` as in `route_blocks`."""
        return self.route_blocks(features, states)[-1]

    def forward_features(self, x: Tensor) -> Any:
        """-> the capsules to route."""
        return self.make_capsules(self.forward_maps(x))

    def forward_capsules(self, x: Tensor, states: States | None = None) -> Tensor:
        """-> class capsules [b, num_classes, d]; `states` as in `route_blocks`."""
        return self.route(self.forward_features(x), states)

    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes]: the lengths of the class capsules."""
        return length(self.route(features))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> feature maps map.i [b, c, h, w], the capsules to route primary.i, outputs of routing blocks routed.i."""
        maps = self.forward_maps(x)
        u, finest = self.make_capsules(maps), self.scales[0]
        return numbered("map", maps, finest) | numbered("primary", u, finest) | numbered("routed", self.route_blocks(u))

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        states: States = []
        self.forward_capsules(x, states)
        paths = {module: path for path, module in self.named_modules()}
        for state in states:
            state.name = paths[state.block]
        return states

    def get_classifier(self) -> nn.Module:
        return self.routing

    def new_classifier(self, num_classes: int) -> None:
        self.routing = self.init_votes(self.routing.with_outputs(num_classes))
        if self.decoder is not None:
            self.decoder = self.new_decoder(num_classes)

    def init_votes(self, routing: Any) -> Any:
        """Gives a new block of class capsules the initial weights of the family; by default it keeps its own."""
        return routing

    def new_decoder(self, num_classes: int) -> nn.Module:
        return Decoder(num_classes * self.d_out, self.in_chans * math.prod(self.img_size), self.hidden)

    def training_loss(self, x: Tensor, y: Tensor, criterion: Criterion) -> Tensor:
        if self.decoder is None:
            return super().training_loss(x, y, criterion)
        v = self.forward_capsules(x)
        error = (at_least_fp32(self.reconstruct(v, y)) - x).square().flatten(1).sum(1)  # [b]
        return criterion(length(v), y) + self.reconstruction * error.mean()

    def reconstruct(self, v: Tensor, y: Tensor) -> Tensor:
        """Class capsules [b, K, d] and the classes to draw, [b] or soft [b, K] -> images in [0, 1]."""
        if self.decoder is None:
            raise MspcapsError("this model has no decoder: create it with decoder=True")
        weights = soft_targets(y, v[..., 0])  # [b, K]
        u = self.decoder_input(v, weights).to(next(self.decoder.parameters()).dtype)
        return self.decoder(u).view(-1, self.in_chans, *self.img_size)

    def decoder_input(self, v: Tensor, weights: Tensor) -> Tensor:
        """Class capsules [b, K, d] and the weight of each class [b, K] -> the input of the decoder."""
        return (v * weights.unsqueeze(-1)).flatten(1)
