"""The contract: what a family declares, and all that the rest of the library knows about a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import RoutingState
from mspcaps.capsules.patchify import Grid
from mspcaps.errors import MspcapsError
from mspcaps.models.layers import Normalize

Criterion = Callable[[Tensor, Tensor], Tensor]  # see Model.criterion


@dataclass(frozen=True)
class Task:
    """What a model is built for; `create_model` has checked it."""

    num_classes: int
    in_chans: int
    img_size: tuple[int, int]  # height, width
    mean: tuple[float, ...]  # per channel: the normalisation inside the model
    std: tuple[float, ...]


class Model(nn.Module, ABC):
    """A classifier: images [b, in_chans, *img_size] in [0, 1] -> class scores [b, num_classes]; argmax is the answer.

    A family implements `forward_features` and `forward_head` and overrides what differs from the defaults here.
    """

    scores: ClassVar[Literal["lengths", "logits"]] = "logits"  # lengths are in [0, 1], each class by itself

    config: dict[str, Any]  # name, the task, and the family's options: what builds it again
    metadata: dict[str, Any]  # what else its weights file says, such as classes and recipe
    num_features: int  # how many numbers the classifier sees of an image

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.num_classes, self.in_chans, self.img_size = task.num_classes, task.in_chans, task.img_size
        self.config = {entry.name: getattr(task, entry.name) for entry in fields(task)}
        self.metadata = {}
        self.normalize = Normalize(task.mean, task.std, task.img_size)
        self.grad_checkpointing = False

    if TYPE_CHECKING:  # PyTorch's own returns Any

        def __call__(self, x: Tensor) -> Tensor: ...

    @staticmethod
    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        """The family's own loss: scores [b, K], class numbers [b] or soft targets [b, K] -> scalar."""
        return F.cross_entropy(scores, y)

    @abstractmethod
    def forward_features(self, x: Tensor) -> Any:
        """Images -> what the head takes: a tensor, or a list of them, such as the capsules of each scale."""

    @abstractmethod
    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes]."""

    def forward(self, x: Tensor) -> Tensor:
        """-> class scores [b, num_classes]."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> feature maps and capsules of each scale, by name, in the order in which they are computed."""
        features = self.forward_features(x)
        return {f"features.{i}": f for i, f in enumerate(features if isinstance(features, list) else [features])}

    def training_loss(self, x: Tensor, y: Tensor, criterion: Criterion) -> Tensor:
        """Of images and class numbers [b] or soft targets [b, K]. A model with a decoder adds what that costs."""
        return criterion(self(x), y)

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        """What every routing block does with a batch, in order; empty for a model without couplings."""
        return []

    def patch_grids(self) -> list[tuple[int, Grid]]:
        """Side in pixels and grid of the patches of each scale, finest first; empty if capsules have no place."""
        return []

    def get_classifier(self) -> nn.Module:
        """The module whose size depends on the number of classes."""
        raise MspcapsError(f"{type(self).__name__} does not say which of its modules is the classifier")

    def new_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a fresh one for so many classes; `reset_classifier` calls it."""
        raise MspcapsError(f"the classifier of {type(self).__name__} cannot be replaced")

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh classifier for other classes, on the device and in the precision of the old one."""
        old = next(self.get_classifier().parameters())
        self.new_classifier(num_classes)
        self.get_classifier().to(old.device, old.dtype)
        self.num_classes = num_classes
        self.config = self.config | {"num_classes": num_classes}
        self.metadata = {key: value for key, value in self.metadata.items() if key != "classes"}

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that an optimizer should not decay."""
        return set()

    def fp32_parameters(self) -> set[str]:
        """Names of the matrices that must not be rounded to half precision; vectors never are."""
        return set()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep less for the backward pass and compute it again: less memory, about a third more time."""
        self.grad_checkpointing = enable

    @classmethod
    def upgrade_state(cls, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of an older file, by the names of today."""
        return tensors


def param_groups(model: Model, weight_decay: float) -> list[dict[str, Any]]:
    """For torch.optim: the model's parameters, those of `no_weight_decay` in a group of their own."""
    spared = model.no_weight_decay()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups: Sequence[tuple[list[nn.Parameter], float]] = (
        ([p for name, p in named if name not in spared], weight_decay),
        ([p for name, p in named if name in spared], 0.0),
    )
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]
