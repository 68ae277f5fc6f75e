"""Which images each step sees: the epoch laid out on the device.

The order and the draws depend on (seed, epoch) alone, so a batch depends on (seed, epoch, step) alone and a resumed run
equals an uninterrupted one. With several processes each takes its share of every batch. A balanced epoch, which draws
every class equally often, is just another order.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from mspcaps.data import Augmentation, FolderImages, ImageSet
from mspcaps.data.augment import augment_images, balanced_order, draw_columns, epoch_draws, epoch_order
from mspcaps.data.folder import iterate_batches
from mspcaps.errors import MspcapsError
from mspcaps.training.distributed import World
from mspcaps.training.recipe import Recipe

WORKERS = 2  # processes that read pictures
MAX_STEPS_PER_REPLAY = 16  # most steps in one CUDA graph


class Loader:
    """The images on the device and, for the current epoch, their order and their augmentation draws."""

    def __init__(
        self, data: ImageSet | FolderImages, batch_size: int, augment: Augmentation, seed: int, rank: int = 0,
        world: int = 1, balance: bool = False, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.n, self.seed, self.rank, self.world = len(data), seed, rank, world
        self.batch_size, self.augment, self.classes = batch_size, augment, data.classes
        self.check_batch()
        self.steps = self.n // batch_size  # per epoch
        self.balanced = torch.as_tensor(data.labels).cpu() if balance else None
        self.place(data, device)

    def check_batch(self) -> None:
        if self.n < self.batch_size:
            raise MspcapsError(
                f"a batch of {self.batch_size} is larger than the training set of {self.n} images: choose a batch_size "
                f"up to {self.n}"
            )
        pairs = self.world > 1 and self.augment.mixup > 0  # images are not mixed across processes
        if self.batch_size % (unit := 2 * self.world if pairs else self.world):
            fitting = max(1, min(round(self.batch_size / unit), self.n // unit)) * unit
            raise MspcapsError(
                f"a batch of {self.batch_size} cannot be split among {self.world} processes"
                f"{' in pairs for mixup' * pairs}: choose a batch_size of {fitting}"
            )

    def place(self, data: Any, device: torch.device | None) -> None:
        """Set up the tensors that steps read; the images are on the device already."""
        self.images, self.labels = data.images, data.labels
        self.allocate_rows(self.steps, data.images.device)
        self.step_number = self.position
        self.drawing = ThreadPoolExecutor(max_workers=1)  # one per loader: a global pool would hang after a fork
        self.next_draw: dict[int, Future[tuple[Tensor, Tensor]]] = {}  # the epoch that is drawn in advance

    def allocate_rows(self, rows: int, device: torch.device | None) -> None:
        """What a step reads: one row of order and draws, its position, and the key of the dropout masks."""
        share = self.batch_size // self.world
        self.order = torch.zeros(rows, share, dtype=torch.int64, device=device)
        self.draws = torch.zeros(rows, share, draw_columns(self.augment), device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.epoch_key = torch.zeros(1, dtype=torch.int64, device=device)

    def epoch_order(self, epoch: int) -> Tensor:
        """The image at each position of the epoch: int64, at least steps x batch_size of them."""
        if self.balanced is None:
            return epoch_order(self.seed, epoch, self.n)
        return balanced_order(self.seed, epoch, self.balanced, self.steps * self.batch_size)

    def share(self, rows: Tensor) -> Tensor:
        """[n, ...] for all images of an epoch -> [steps, this process's share of the batch, ...]."""
        rows = rows[: self.steps * self.batch_size].view(self.steps, self.batch_size, *rows.shape[1:])
        return rows.chunk(self.world, dim=1)[self.rank]

    def draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """-> this process's order and draws for the epoch, in pinned memory if they go to a GPU."""
        order = self.epoch_order(epoch)
        draws = self.share(epoch_draws(self.seed, epoch, self.n, self.augment, order))
        order = self.share(order)
        return (order.pin_memory(), draws.pin_memory()) if self.order.is_cuda else (order, draws)

    def begin(self, epoch: int, step: int = 0) -> None:
        """Lay out the epoch from `step` on. The epoch after it is drawn while the device trains."""
        order, draws = self.next_draw[epoch].result() if epoch in self.next_draw else self.draw(epoch)
        self.order.copy_(order, non_blocking=True)
        self.draws.copy_(draws, non_blocking=True)
        self.next_draw = {epoch + 1: self.drawing.submit(self.draw, epoch + 1)}
        self.position.fill_(step)
        self.epoch_key.fill_(dropout_key(self.seed, epoch))

    def advance(self) -> None:
        """Called before every step; there is nothing to fetch, as the images are on the device."""

    @property
    def steps_per_replay(self) -> int:
        """How many steps one CUDA graph holds: a divisor of the steps per epoch."""
        return next(d for d in range(min(self.steps, MAX_STEPS_PER_REPLAY), 0, -1) if self.steps % d == 0)


class StreamingLoader(Loader):
    """For image sets that do not fit on the device: a DataLoader reads the pictures and the device augments them."""

    steps_per_replay = 1

    def place(self, data: Any, device: torch.device | None) -> None:
        """Allocate one batch."""
        self.data = data
        self.allocate_rows(1, device)
        share = self.order.shape[1]
        self.images = torch.zeros(share, data.channels, *data.size, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(share, dtype=torch.int64, device=device)
        self.order.copy_(torch.arange(share))
        self.step_number = torch.zeros_like(self.position)

    def begin(self, epoch: int, step: int = 0) -> None:
        order, self.all_draws = self.draw(epoch)
        rows = order[step:].tolist()
        self.batches = iterate_batches(DataLoader(self.data, batch_sampler=rows, num_workers=WORKERS))
        self.step = step
        self.epoch_key.fill_(dropout_key(self.seed, epoch))

    def advance(self) -> None:
        images, labels = next(self.batches)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.draws.copy_(self.all_draws[self.step].unsqueeze(0))
        self.position.zero_()
        self.step_number.fill_(self.step)
        self.step += 1


def make_loader(recipe: Recipe, train: ImageSet | FolderImages, device: torch.device, world: World) -> Loader:
    """The loader of a resolved recipe."""
    assert recipe.augment is not None
    kind = Loader if isinstance(train, ImageSet) else StreamingLoader
    return kind(train, recipe.batch_size, recipe.augment, recipe.seed, world.rank, world.size, recipe.balance, device)


def take_batch(loader: Loader) -> tuple[Tensor, Tensor]:
    """The augmented images [b, c, h, w] and labels [b] at the loader's position; with mixup, labels are [b, K]."""
    index = loader.order.index_select(0, loader.position)[0]  # [b]
    draws = loader.draws.index_select(0, loader.position)[0]  # [b, draw_columns]
    x, y = augment_images(loader.images, index, draws, loader.augment), loader.labels[index]
    return mix(x, y, draws[:, 10], len(loader.classes)) if loader.augment.mixup else (x, y)


def mix(x: Tensor, y: Tensor, share: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Images [b, c, h, w], labels [b] and the share [b] that each keeps of itself -> mixed images and labels [b, K].

    The first image mixes with the second, the third with the fourth, and so on: the batch is in random order, and
    several processes mix the same pairs as one does. The last of an odd number is left as it is.
    """
    partner = (torch.arange(len(x), device=x.device) ^ 1).clamp(max=len(x) - 1)
    targets = torch.zeros(len(x), classes, device=x.device).scatter(1, y[:, None], 1.0)
    kept = share.view(-1, 1, 1, 1)
    return x * kept + x[partner] * (1 - kept), targets * kept[:, :, 0, 0] + targets[partner] * (1 - kept[:, :, 0, 0])


def dropout_key(seed: int, epoch: int) -> int:
    """62 bits that depend on the seed and the epoch alone."""
    digest = hashlib.sha256(f"dropout/{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2
