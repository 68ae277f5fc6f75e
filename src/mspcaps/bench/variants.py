"""What is timed: the trainer's own step on synthetic images, and a careful eager reference.

Random pixels take the same time as photographs: nothing in a step depends on their values.

The reference trains as such code is usually written: worker processes read, crop and flip one image at a time, plain
modules run in fp32, autograd fills .grad, and torch.optim.AdamW takes the step. Where habits differ it takes the faster
way: several persistent workers, pinned memory, non-blocking copies, and no loss read back from the device.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from mspcaps.data import Augmentation, ImageSet, facts
from mspcaps.models import Model, create_model
from mspcaps.training.device import Engine, choose_engine
from mspcaps.training.distributed import World
from mspcaps.training.loader import Loader
from mspcaps.training.recipe import Recipe
from mspcaps.training.step import Step
from mspcaps.training.trainer import preparation_lock

CIFAR10 = facts("cifar10")
AUGMENT: Augmentation = CIFAR10.augment
PAPER = Recipe()
PREFETCH = 2  # batches per worker of the reference, PyTorch's default


@dataclass(frozen=True)
class Task:
    """Size and number of the images to train on; the defaults are those of CIFAR-10."""

    batch_size: int = PAPER.batch_size
    img_size: int = CIFAR10.native_size[0]
    num_classes: int = len(CIFAR10.classes)
    images: int = CIFAR10.train

    def data(self) -> ImageSet:
        """Random pixels, random labels."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.images, CIFAR10.channels, self.img_size, self.img_size)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        labels = torch.randint(self.num_classes, (self.images,), generator=generator)
        return ImageSet(images, labels, tuple(map(str, range(self.num_classes))), "synthetic")

    def model(self, name: str, seed: int = 0) -> Model:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return create_model(
                name, num_classes=self.num_classes, in_chans=CIFAR10.channels, img_size=self.img_size,
                mean=CIFAR10.mean, std=CIFAR10.std,
            )  # fmt: skip


class EngineRun:
    """The trainer's steps, epoch after epoch."""

    def __init__(
        self, model: Model, data: ImageSet, task: Task, engine: Engine | None = None, seed: int = 0, fused: bool = True,
        world: World | None = None, precision: str | None = None,
    ) -> None:  # fmt: skip
        self.device = data.images.device
        self.engine = choose_engine(engine, self.device)
        self.loader = Loader(data, task.batch_size, AUGMENT, seed)
        recipe = PAPER.replace(precision=precision)
        self.step = Step(model.to(self.device).train(), self.loader, recipe, self.engine, world, fused)
        self.step.optimizer.lr.fill_(PAPER.lr)
        self.precision = "fp32" if self.step.autocast is None else "bf16"
        self.epoch = self.done = 0
        self.loader.begin(0)
        if self.engine == "cudagraph":
            with preparation_lock:
                self.step.capture()

    def run(self, steps: int) -> int:
        """Take at least this many steps -> how many it took"""
        taken = 0
        while taken < steps:
            if self.done >= self.loader.steps:
                self.epoch, self.done = self.epoch + 1, 0
                self.loader.begin(self.epoch)
            count = self.step()
            self.done, taken = self.done + count, taken + count
        return taken


class AugmentedPictures(Dataset[tuple[Tensor, Tensor]]):
    """One image and its label at a time, randomly cropped and flipped, as with torchvision's transforms."""

    def __init__(self, data: ImageSet, augment: Augmentation) -> None:
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
    """[c, h, w] -> a window of the same size from the zero-padded image."""
    h, w = image.shape[1:]
    top, left = torch.randint(0, 2 * padding + 1, (2,)).tolist()
    return F.pad(image, (padding,) * 4)[:, top : top + h, left : left + w]


def endless(loader: "DataLoader[tuple[Tensor, Tensor]]") -> Iterator[list[Tensor]]:
    """Its batches, epoch after epoch."""
    while True:
        yield from loader


class EagerReference:
    """Steps of ordinary eager training, epoch after epoch."""

    engine, precision = "eager", "fp32"

    def __init__(
        self, model: Model, data: ImageSet, batch_size: int, augment: Augmentation, device: torch.device,
        workers: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.device, self.criterion = model.to(device).train(), device, model.criterion
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.loader = DataLoader(
            AugmentedPictures(data, augment), batch_size, shuffle=True, drop_last=True, num_workers=self.workers,
            persistent_workers=self.workers > 0, pin_memory=device.type == "cuda",
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=PAPER.lr, weight_decay=PAPER.weight_decay)
        self.batches = endless(self.loader)
        self.loss_sum = torch.zeros((), device=device)

    def run(self, steps: int) -> int:
        for _ in range(steps):
            images, labels = (tensor.to(self.device, non_blocking=True) for tensor in next(self.batches))
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.loss_sum += loss.detach()
        return steps

    def settle(self) -> None:
        """Batches prefetched while other variants ran would not be timed. On a CPU steps are so long that this does not
        matter."""
        if self.device.type == "cuda":
            self.run(PREFETCH * self.workers)

    def close(self) -> None:
        """End the workers, which live as long as the loader."""
        del self.batches, self.loader
