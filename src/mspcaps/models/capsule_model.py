"""What networks with class capsules share: scores are lengths, the loss is the margin loss, a decoder if wanted."""

import math
from typing import Any

from torch import Tensor, nn

from mspcaps.capsules import RoutingState, States, length, margin_loss
from mspcaps.capsules.losses import soft_targets
from mspcaps.errors import MspcapsError
from mspcaps.models.model import Criterion, Model, Task

RECONSTRUCTION = 0.0005  # of CapsNet


class Decoder(nn.Sequential):
    """The decoder of CapsNet: class capsules, those of other classes set to zero, flat [b, K d] -> pixels in [0, 1]."""

    def __init__(self, inputs: int, task: Task, hidden: tuple[int, int] = (512, 1024)) -> None:
        first, second = hidden
        pixels = task.in_chans * math.prod(task.img_size)
        layers = (nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, pixels))
        super().__init__(*layers, nn.Sigmoid())


class CapsuleModel(Model):
    """A family implements `forward_features` and sets `self.routing`, or implements `route` if there is more to it than
    one block. With a decoder it sets `self.d_out` and `self.decoder`, and `self.reconstruction` if the weight of its
    error is not that of CapsNet."""

    scores = "lengths"
    criterion = staticmethod(margin_loss)
    routing: Any
    d_out: int  # numbers of a class capsule

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task
        self.decoder: nn.Module | None = None
        self.reconstruction = RECONSTRUCTION  # weight of the squared error, summed over pixels

    def route(self, features: Any, states: States | None = None) -> Tensor:
        """-> class capsules [b, num_classes, d]; what every routing block did is appended to `states` if given."""
        return self.routing(features, states)

    def forward_capsules(self, x: Tensor) -> Tensor:
        """-> class capsules [b, num_classes, d]."""
        return self.route(self.forward_features(x))

    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes]: the lengths of the class capsules."""
        return length(self.route(features))

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        states: States = []
        self.route(self.forward_features(x), states)
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
        """A fresh block of class capsules, with the initial weights of the family if the block's own are others."""
        return routing

    def new_decoder(self, num_classes: int) -> nn.Module:
        return Decoder(num_classes * self.d_out, self.task)

    def training_loss(self, x: Tensor, y: Tensor, criterion: Criterion) -> Tensor:
        v = self.forward_capsules(x)
        loss = criterion(length(v), y)
        if self.decoder is None:
            return loss
        error = (self.reconstruct(v, y).float() - x).square().flatten(1).sum(1)  # [b]
        return loss + self.reconstruction * error.mean()

    def reconstruct(self, v: Tensor, y: Tensor) -> Tensor:
        """Class capsules [b, K, d] and the classes to draw them as, [b] or soft [b, K] -> images in [0, 1]."""
        if self.decoder is None:
            raise MspcapsError("this model has no decoder: create it with decoder=True")
        shown = soft_targets(y, v[..., 0])  # [b, K]
        return self.decoder(self.show(v, shown)).view(-1, self.in_chans, *self.img_size)

    def show(self, v: Tensor, shown: Tensor) -> Tensor:
        """Class capsules [b, K, d] and how much of each is shown [b, K] -> what the decoder takes."""
        return (v * shown.unsqueeze(-1)).flatten(1)
