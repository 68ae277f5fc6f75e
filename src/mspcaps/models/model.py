"""The contract: what a family declares, which is all that the rest of the library knows about a model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import RoutingState, margin_loss
from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.squash import at_least_fp32
from mspcaps.errors import MspcapsError
from mspcaps.models.layers import LEAST_STD, Normalize

Criterion = Callable[[Tensor, Tensor], Tensor]  # see Model.criterion
ImageSize = int | tuple[int, int]
MAX_SIZE = 1 << 24  # limit on classes, channels and pixels a side: their products still fit into 64 bits


@dataclass(frozen=True)
class Task:
    """What a model is built for; `make_task` checks it."""

    num_classes: int
    in_chans: int
    img_size: tuple[int, int]  # height, width
    mean: tuple[float, ...]  # per channel: the normalisation inside the model
    std: tuple[float, ...]

    @property
    def numel(self) -> int:
        """Values in an image: channels x height x width."""
        return self.in_chans * math.prod(self.img_size)


TASK = tuple(entry.name for entry in fields(Task))


def make_task(
    name: str, num_classes: int, in_chans: int, img_size: ImageSize, mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Task:  # fmt: skip
    """Refuses sizes that are not whole numbers in range, and anything but one finite mean and deviation per channel."""
    sides = tuple(img_size) if isinstance(img_size, list | tuple) else (img_size, img_size)
    if len(sides) != 2 or not all(isinstance(side, Integral) for side in sides):
        raise MspcapsError(f"img_size is {img_size!r}, but must be one or two whole numbers of pixels")
    size = int(sides[0]), int(sides[1])
    for what, value in (("num_classes", num_classes), ("in_chans", in_chans), ("img_size", max(size))):
        if isinstance(value, Integral) and value >= MAX_SIZE:
            raise MspcapsError(f"{what} is {value}, but must be less than {MAX_SIZE}")
    for what, value, least in (("num_classes", num_classes, 2), ("in_chans", in_chans, 1)):
        if not isinstance(value, Integral):
            raise MspcapsError(f"{what} is {value!r}, but must be a whole number")
        if value < least:
            raise MspcapsError(f"{what} is {value}, but {name} needs at least {least}")
    num_classes, in_chans = int(num_classes), int(in_chans)
    try:
        means = tuple(float(m) for m in mean) if mean is not None else (0.5,) * in_chans
        deviations = tuple(float(s) for s in std) if std is not None else (0.5,) * in_chans
    except (TypeError, ValueError) as error:
        raise MspcapsError(
            f"mean and std must be lists of numbers, one per channel, not {mean!r} and {std!r}"
        ) from error
    if not all(map(math.isfinite, (*means, *deviations))):
        raise MspcapsError(f"mean and std must be finite, not {means} and {deviations}")
    if len(means) != in_chans or len(deviations) != in_chans:
        raise MspcapsError(
            f"mean and std need one value per channel: got {len(means)} and {len(deviations)} for {in_chans}"
        )
    if min(deviations) <= 0:
        raise MspcapsError(f"std is {deviations}, but the deviation of every channel must be above 0")
    return Task(num_classes, in_chans, size, means, deviations)


class Model(nn.Module, ABC):
    """A classifier: images [b, in_chans, *img_size] in [0, 1] -> class scores [b, num_classes]; argmax is the answer.

    A family implements `forward_features` and `forward_head` and overrides what differs from the defaults here.
    """

    scores: ClassVar[Literal["lengths", "logits"]] = "logits"  # lengths are in [0, 1], independent for each class

    config: dict[str, Any]  # name, task and the family's options: enough to build the model again
    metadata: dict[str, Any]  # the rest of its weights file's header, such as classes and recipe
    num_features: int  # how many features of an image the classifier gets

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.num_classes, self.in_chans, self.img_size = task.num_classes, task.in_chans, task.img_size
        self.config = {name: getattr(task, name) for name in TASK}
        self.metadata = {}
        self.normalize = Normalize(task.mean, task.std, task.img_size)
        self.grad_checkpointing = False
        self.register_load_state_dict_post_hook(follow_normalization)

    if TYPE_CHECKING:  # PyTorch's own returns Any

        def __call__(self, x: Tensor) -> Tensor: ...

    @staticmethod
    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        """The family's own loss: scores [b, K], class numbers [b] or soft targets [b, K] -> scalar."""
        return F.cross_entropy(scores, y)

    @abstractmethod
    def forward_features(self, x: Tensor) -> Any:
        """Images -> the input of the head: a tensor, or a list of them, such as the capsules of each scale."""

    @abstractmethod
    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes]."""

    def forward(self, x: Tensor) -> Tensor:
        """-> class scores [b, num_classes]."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> feature maps and capsules of each scale, by name, in the order in which they are computed."""
        return numbered("features", self.forward_features(x))

    def training_loss(self, x: Tensor, y: Tensor, criterion: Criterion) -> Tensor:
        """Images, class numbers [b] or soft targets [b, K] -> scalar. A model with a decoder adds its loss here."""
        return criterion(self(x), y)

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        """The state of every routing block for a batch, in order; empty for a model without couplings."""
        return []

    def patch_grids(self) -> list[tuple[int, Grid]]:
        """Side in pixels and grid of the patches of each scale, finest first; empty if capsules have no position."""
        return []

    def tensor_places(self) -> dict[str, Any]:
        """Name -> place of a tensor: the grid or window that its rows belong to, as its module's `tensor_places` says.

        A tensor of the same shape at another place means something else: `transfer` copies a tensor if its places are
        equal and interpolates it if both are an OnGrid. A module that does not know the place says None, which stands
        for the image size.
        """
        return {
            f"{path}.{name}": self.img_size if place is None else place
            for path, module in self.named_modules()
            if path and hasattr(module, "tensor_places")
            for name, place in module.tensor_places().items()
        }

    def get_classifier(self) -> nn.Module:
        """The module whose size depends on the number of classes."""
        raise MspcapsError(f"{type(self).__name__} does not say which of its modules is the classifier")

    def new_classifier(self, num_classes: int) -> None:
        """Replaces all modules that depend on the number of classes; `reset_classifier` does the rest."""
        raise MspcapsError(f"the classifier of {type(self).__name__} cannot be replaced")

    def reset_classifier(self, num_classes: int) -> None:
        """Replaces the classifier by a new one for other classes, on the same device and in the same precision."""
        task = {name: self.config[name] for name in TASK} | {"num_classes": num_classes}
        num_classes = make_task(self.config.get("name", "the model"), **task).num_classes
        old, modules = next(self.get_classifier().parameters()), {*self.modules()}
        self.new_classifier(num_classes)
        for module in {*self.modules()} - modules:
            module.to(old.device, old.dtype).train(self.training)
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
        """Recompute activations in the backward pass instead of storing them: less memory, about a third more time."""
        for module in self.modules():
            if hasattr(module, "grad_checkpointing"):
                module.grad_checkpointing = enable  # type: ignore[assignment]

    @classmethod
    def upgrade_state(cls, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames the tensors of an older file to today's names."""
        return tensors


class LinearClassifier(Model):
    """A model that ends in one linear layer; a family calls `new_classifier` once it has set `num_features`."""

    head: nn.Linear

    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes]: logits, before any softmax."""
        return self.head(features)

    def get_classifier(self) -> nn.Module:
        return self.head

    def new_classifier(self, num_classes: int) -> None:
        self.head = nn.Linear(self.num_features, num_classes)


class MarginClassifier(LinearClassifier):
    """Sigmoids of the linear layer, trained with the margin loss: scores in [0, 1], each by itself, as lengths."""

    scores = "lengths"
    criterion = staticmethod(margin_loss)

    def forward_head(self, features: Any) -> Tensor:
        """-> class scores [b, num_classes] in [0, 1]."""
        return at_least_fp32(super().forward_head(features)).sigmoid()


def numbered(name: str, tensors: Tensor | list[Tensor], first: int = 0) -> dict[str, Tensor]:
    """name.0, name.1, ... for a list of tensors, name.0 for a single one."""
    return {f"{name}.{i}": t for i, t in enumerate(tensors if isinstance(tensors, list) else [tensors], first)}


def follow_normalization(model: nn.Module, _: object) -> None:
    """After a state dict was loaded: puts its mean and standard deviation into the config."""
    assert isinstance(model, Model)
    for name in ("mean", "std"):
        loaded = getattr(model.normalize, name).detach().flatten()
        if loaded.is_meta:
            continue
        configured = loaded.new_tensor(model.config[name]).clamp_min(LEAST_STD if name == "std" else -math.inf)
        if not torch.allclose(loaded, configured, rtol=2**-10, atol=0):  # files in half precision round them
            model.config = model.config | {name: tuple(loaded.tolist())}


def param_groups(model: Model, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim: those of `no_weight_decay` are in a group of their own."""
    undecayed = model.no_weight_decay()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups: Sequence[tuple[list[nn.Parameter], float]] = (
        ([p for name, p in named if name not in undecayed], weight_decay),
        ([p for name, p in named if name in undecayed], 0.0),
    )
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise MspcapsError(f"expected a model, not {model!r:.80}")
    while inner := model._modules.get("_orig_mod") or (
        None if hasattr(model, "config") else model._modules.get("module")
    ):
        model = inner
    return model


def config_of(model: nn.Module) -> dict[str, Any]:
    """The config of a model from `create_model` or `load_model`, wrapped or not."""
    config = getattr(unwrapped(model), "config", None)
    if not isinstance(config, dict):
        raise MspcapsError(
            f"a {type(model).__name__} does not say which images it takes: use a model from create_model or load_model"
        )
    return config


def class_names(model: nn.Module) -> tuple[str, ...]:
    """The names in the model's metadata, or the class numbers if it has none."""
    count = config_of(model)["num_classes"]
    names = tuple(getattr(unwrapped(model), "metadata", {}).get("classes") or map(str, range(count)))
    if len(names) != count:
        raise MspcapsError(
            f"model.metadata names {len(names)} classes, but the model has {count}: name each of them once"
        )
    return names
