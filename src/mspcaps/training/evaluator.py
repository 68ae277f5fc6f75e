"""Accuracy and routing health after every epoch, on the device and in the precision of training."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from mspcaps.data import FolderImages, ImageSet
from mspcaps.data.folder import iterate_batches
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import limit_batch
from mspcaps.evaluation.health import BlockHealth, HealthMeter, chosen, in_chunks
from mspcaps.models import Model
from mspcaps.models.layers import in_eval_mode
from mspcaps.training.average import frozen_twin
from mspcaps.training.device import Engine, in_precision
from mspcaps.training.loader import WORKERS
from mspcaps.training.objective import Attack, margin
from mspcaps.training.recipe import Adversary, Recipe
from mspcaps.training.step import Step, capture_graph, compiler_of

BATCH = 1000  # images at a time, if they fit into memory


def count_correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """images [b, c, h, w], uint8 or in [0, 1], labels [b] -> how many images the model classifies correctly."""
    x = images.float() / 255 if images.dtype == torch.uint8 else images
    return (model(x).argmax(1) == labels).sum()


class Evaluator:
    """`accuracy()` in percent, then `health()`. The whole pass over an image set can be captured as one CUDA graph."""

    def __init__(
        self, model: Model, data: ImageSet | FolderImages, device: torch.device, engine: Engine,
        autocast: torch.dtype | None, batch: int = BATCH,
    ) -> None:  # fmt: skip
        self.model, self.data, self.device, self.autocast = model, data, device, autocast
        self.batch = limit_batch(model, min(batch, len(data)))
        self.count = compiler_of(engine)(count_correct)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.meter = HealthMeter(model)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batches: list[tuple[Tensor, Tensor]] = []
        if isinstance(data, ImageSet):
            spare = -len(data) % self.batch  # fills the last batch up to the same shape; a label of -1 is never right
            images, labels = data.images.to(device), data.labels.to(device)
            if spare:
                images, labels = torch.cat([images, images[:spare]]), F.pad(labels, (0, spare), value=-1)
            self.batches = list(zip(images.split(self.batch), labels.split(self.batch), strict=True))

    @cached_property
    def health_images(self) -> list[tuple[Tensor, Tensor]]:
        """The images on which routing health is measured, uint8, on the device, in chunks."""
        data = self.data.subset(chosen(len(self.data), self.device))
        data = data.resident() if isinstance(data, FolderImages) else data
        return in_chunks(data.images.to(self.device), data.labels.to(self.device), self.batch)

    def capture(self) -> None:
        """Record the pass as a CUDA graph; if pictures are read from disk, only compile it."""
        if isinstance(self.data, ImageSet):
            self.graph = capture_graph(self.count_all, warm_up=self.count_all)
        else:
            self.count_all()

    @torch.no_grad()
    def count_all(self) -> None:
        self.correct.zero_()
        batches = self.batches or iterate_batches(DataLoader(self.data, self.batch, num_workers=WORKERS))
        with in_eval_mode(self.model), in_precision(self.device, self.autocast):
            for images, labels in batches:
                self.correct += self.count(self.model, images.to(self.device), labels.to(self.device))
            self.meter.zero()
            for images, labels in self.health_images:
                self.meter.add(images.float() / 255, labels)

    def accuracy(self) -> float:
        if self.graph is not None:
            self.graph.replay()
        else:
            self.count_all()
        return 100 * self.correct.item() / len(self.data)

    def health(self) -> tuple[BlockHealth, ...]:
        """The health of every routing block, in order, from the last call of `accuracy`."""
        return self.meter.read()


def make_robust_evaluator(
    step: Step, data: ImageSet | FolderImages | None, recipe: Recipe, device: torch.device, engine: Engine
) -> "RobustEvaluator | None":
    """For the validation images, if the recipe has an adversary."""
    if recipe.adversary is None or data is None:
        return None
    if not isinstance(data, ImageSet):
        raise MspcapsError(
            f"an adversary needs validation images that fit into memory, but those of {recipe.dataset} do not: choose "
            "a smaller img_size"
        )
    twin = step.evaluated if step.average else frozen_twin(step.model)
    batch = recipe.batch_size // step.world.size
    return RobustEvaluator(twin, data, device, engine, step.autocast, recipe.adversary, batch)


class RobustEvaluator(Evaluator):
    """`accuracy()` under attack, in percent.

    Ten steps of a quarter of eps, whatever the model is trained against, from the same random start every time. They
    raise the margin of the best other class over the true one. The batch is that of training, whose backward pass fits.
    """

    def __init__(
        self, model: Model, data: ImageSet, device: torch.device, engine: Engine, autocast: torch.dtype | None,
        adversary: Adversary, batch: int,
    ) -> None:  # fmt: skip
        super().__init__(model, data, device, engine, autocast, batch)
        ten_steps = replace(adversary, step_size=adversary.eps / 4, steps=10)
        self.attack = Attack(model, ten_steps, compiler_of(engine), margin)
        self.key = torch.zeros(1, dtype=torch.int64, device=device)
        self.numbers = torch.arange(len(self.batches), device=device)  # of the batches: an image has its own start

    @torch.no_grad()
    def count_all(self) -> None:
        self.correct.zero_()
        with in_precision(self.device, self.autocast):
            for (images, labels), number in zip(self.batches, self.numbers, strict=True):
                attacked = self.attack(images.float() / 255, labels.clamp(min=0), self.key, number)
                self.correct += self.count(self.model, attacked, labels)
