"""A labelled set of images, all on one device, as uint8."""

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from mspcaps.errors import MspcapsError


def to_float(images: Tensor) -> Tensor:
    """uint8 images -> floats in [0, 1]; floats must be in that range already."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point() or not (images.min() >= 0 and images.max() <= 1):
        low, high = images.min().item(), images.max().item()
        remedy = ": divide them by 255" if images.is_floating_point() and low >= 0 and 1 < high <= 255 else ""
        raise MspcapsError(
            f"images must be uint8, or floats in [0, 1], not {images.dtype} from {low:g} to {high:g}{remedy}"
        )
    return images


def random_numbers(count: int, n: int) -> Tensor:
    """At most `count` of the numbers below n, sorted, random but always the same."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count].sort().values


def fold_numbers(labels: Tensor, folds: int) -> Tensor:
    """labels [N] -> fold numbers [N] from 1 to folds, random but always the same. All folds have the same number of
    images, and of every class, to within one."""
    labels = labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[labels[order].argsort(stable=True)]  # sorted by class, random within each class
    numbers = torch.empty_like(order)
    numbers[order] = torch.arange(len(labels)) % folds + 1
    return numbers


@dataclass(frozen=True)
class ImageSet(Dataset[tuple[Tensor, int]]):
    """images uint8 [N, C, H, W], labels int64 [N], classes: one name per label."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.images.shape[1:])
        return f"ImageSet({self.name}: {len(self):,} images of {shape}, {len(self.classes)} classes)"

    def __post_init__(self) -> None:
        for value in (self.images, self.labels):
            if not isinstance(value, Tensor):
                raise MspcapsError(
                    f"{self.name}: images and labels must be tensors, not {type(value).__name__}: use "
                    "torch.from_numpy for arrays"
                )
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise MspcapsError(
                f"{self.name}: images must be uint8 [N, C, H, W], not {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise MspcapsError(
                f"{self.name}: {len(self.images)} images need {len(self.images)} int64 labels, not "
                f"{self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if 0 in self.images.shape:
            raise MspcapsError(f"{self.name}: the images are empty, their shape is {tuple(self.images.shape)}")
        if len({*self.classes}) < len(self.classes):
            duplicate = Counter(self.classes).most_common(1)[0][0]
            raise MspcapsError(f"{self.name}: two classes are called {duplicate!r}")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise MspcapsError(
                f"{self.name}: labels run from {low} to {high}, but there are {len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """(uint8 [C, H, W], label), for a DataLoader."""
        return self.images[index], int(self.labels[index])

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        return self.images.shape[2], self.images.shape[3]

    def to(self, device: torch.device | str) -> "ImageSet":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, index: Tensor | slice) -> "ImageSet":
        index = index.to(self.images.device) if isinstance(index, Tensor) else index
        return replace(self, images=self.images[index], labels=self.labels[index])

    def split(self, held_out: int, name: str = "held_out") -> tuple["ImageSet", "ImageSet"]:
        """-> (the rest, `held_out` images); the held-out images are random but always the same."""
        if not 0 < held_out < len(self):
            raise MspcapsError(
                f"{name} is {held_out}, but must lie between 1 and {len(self) - 1:,}: {self.name} has "
                f"{len(self):,} images"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.subset(order[held_out:].sort().values), self.subset(order[:held_out].sort().values)

    def resized(self, size: tuple[int, int]) -> "ImageSet":
        """Bilinear, antialiased when shrinking, rounded to uint8; in blocks, to keep the float copy small."""
        if size == self.size:
            return self
        blocks = [
            F.interpolate(block.float(), size=size, mode="bilinear", antialias=True)
            .round_()
            .clamp_(0, 255)
            .to(torch.uint8)
            for block in self.images.split(4096)
        ]
        return replace(self, images=torch.cat(blocks))

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel, of pixels in [0, 1]."""
        pixels = self.images.transpose(0, 1).flatten(1)
        total = pixels.sum(1, dtype=torch.float64)
        squares = torch.stack([(block.double() ** 2).sum(1) for block in pixels.split(1 << 22, dim=1)]).sum(0)
        mean = total / pixels.shape[1]
        std = (squares / pixels.shape[1] - mean**2).clamp_min(0).sqrt()
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
