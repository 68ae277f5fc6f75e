"""Our engine as the benchmark runs it: the trainer's own step, on synthetic images.

Random pixels take the same time as photographs: nothing in a step depends on their values.
"""

from dataclasses import dataclass

import torch

from mspcaps.bench.timing import Timed
from mspcaps.data import Augmentation, ImageSet, facts
from mspcaps.models import Model, create_model
from mspcaps.training.device import Engine, choose_engine
from mspcaps.training.loader import Loader
from mspcaps.training.recipe import Recipe
from mspcaps.training.step import make_step
from mspcaps.training.trainer import preparing

CIFAR10 = facts("cifar10")
AUGMENT: Augmentation = CIFAR10.augment
PAPER = Recipe()


@dataclass(frozen=True)
class Task:
    """What is trained on: images like CIFAR-10's unless it says otherwise."""

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


class EngineRun(Timed):
    """Takes the trainer's steps, epoch after epoch."""

    def __init__(
        self, model: Model, data: ImageSet, task: Task, engine: Engine | None = None, seed: int = 0, fused: bool = True
    ) -> None:
        device = data.images.device
        self.device, self.engine = device, choose_engine(engine, device)
        self.loader = Loader(data, task.batch_size, AUGMENT, seed)
        self.step = make_step(model.to(device).train(), self.loader, PAPER, self.engine, fused=fused)
        self.step.optimizer.lr.fill_(PAPER.lr)
        self.epoch = self.done = 0
        self.loader.begin(0)
        if self.engine == "cudagraph":
            with preparing:
                self.step.capture()

    def run(self, steps: int) -> int:
        taken = 0
        while taken < steps:
            if self.done >= self.loader.steps:
                self.epoch, self.done = self.epoch + 1, 0
                self.loader.begin(self.epoch)
            count = self.step()
            self.done, taken = self.done + count, taken + count
        return taken

    @property
    def precision(self) -> str:
        return "fp32" if self.step.autocast is None else "bf16"
