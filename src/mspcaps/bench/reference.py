"""The eager reference: MSPCaps trained the way such code is usually written, and written with care.

Worker processes read, crop and flip one image at a time, the plain modules run in fp32, autograd fills .grad,
torch.optim.AdamW takes the step. Where habits differ it does what is faster: several workers that stay alive, pinned
memory, copies that do not block, and no loss read back from the device.
"""

import os
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from mspcaps.bench.timing import Timed
from mspcaps.data import Augmentation, ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models import Model
from mspcaps.training import Recipe

PREFETCH = 2  # batches that each worker keeps ready, PyTorch's default


class AugmentedPictures(Dataset[tuple[Tensor, Tensor]]):
    """An image and its label at a time, cropped and flipped at random: what torchvision's transforms do."""

    def __init__(self, data: ImageSet, augment: Augmentation) -> None:
        if augment.rotate:
            raise MspcapsError("the eager reference crops and flips, but does not rotate")
        self.images, self.labels, self.augment = data.images.cpu(), data.labels.cpu(), augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment.crop:
            image = random_crop(image, self.augment.crop)
        if self.augment.flip and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image.float() / 255, self.labels[index]


def random_crop(image: Tensor, padding: int) -> Tensor:
    """[c, h, w] -> a window of the same size of the image with zeros around it."""
    h, w = image.shape[1:]
    top, left = torch.randint(0, 2 * padding + 1, (2,)).tolist()
    return F.pad(image, (padding,) * 4)[:, top : top + h, left : left + w]


class EagerReference(Timed):
    """Takes steps on the images, epoch after epoch."""

    engine, precision = "eager", "fp32"

    def __init__(
        self, model: Model, data: ImageSet, batch_size: int, augment: Augmentation, device: torch.device,
        workers: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.device = model.to(device).train(), device
        self.loss: Callable[[Tensor, Tensor], Tensor] = model.criterion
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.loader = DataLoader(
            AugmentedPictures(data, augment),
            batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=device.type == "cuda",
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=Recipe.lr, weight_decay=Recipe.weight_decay)
        self.batches: Iterator[list[Tensor]] = iter(())
        self.loss_sum = torch.zeros((), device=device)

    def next_batch(self) -> list[Tensor]:
        batch = next(self.batches, None)
        if batch is None:  # the next epoch
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return batch

    def step(self, images: Tensor, labels: Tensor) -> None:
        images = images.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        loss = self.loss(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss_sum += loss.detach()

    def settle(self) -> None:
        """The batches that the workers made ready while others ran would come for free. A CPU's steps are so long that
        it does not matter."""
        if self.device.type == "cuda":
            self.run(PREFETCH * self.workers)

    def run(self, steps: int) -> int:
        for _ in range(steps):
            self.step(*self.next_batch())
        return steps

    def close(self) -> None:
        """End the workers: they live as long as the loader."""
        del self.batches, self.loader
