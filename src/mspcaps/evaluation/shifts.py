"""Natural change: test images rotated, shifted, scaled, sheared, noisy, blurred, occluded or low in contrast.

    CHANGES["rotation"](images, 30.0, seed=0)      the images, each rotated by 30 degrees to the left or to the right
    evaluate_shifts(model, "cifar10")              accuracy for every change at five strengths

A change is a function of the images, its strength and a seed. Each image has its own random draw, which depends only on
the seed and the number of the image: not on its batch, nor on the strength, which only enlarges the same change.
Strength 0 changes nothing. Pixels from outside the image are black, as in training with augmentation.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.data.augment import generator_for, rectangles
from mspcaps.data.imageset import to_float
from mspcaps.errors import MspcapsError, nearest
from mspcaps.evaluation.accuracy import Data, all_scores, full_precision, limit_batch, placement, prepare
from mspcaps.files import ProgressFn, no_progress
from mspcaps.models import unwrapped
from mspcaps.models.layers import check_labels

BLOCK = 100  # images per block of random draws
Shape = tuple[int, int, int, int]
Draw = Callable[[torch.Generator, Shape], Tensor]  # shape [b, c, h, w] of images -> draws [b, ...]
Apply = Callable[[Tensor, Tensor, float], Tensor]  # images [b, c, h, w], draws [b, ...], strength -> [b, c, h, w]


@dataclass(frozen=True)
class Change:
    """One change and the five strengths it is measured at. Lengths are fractions of the side of the image."""

    name: str
    unit: str  # of the strengths, as words after a number
    strengths: tuple[float, float, float, float, float]
    most: float  # the largest strength that makes sense
    draw: Draw
    apply: Apply

    def __call__(self, images: Tensor, strength: float, seed: int = 0, first: int = 0) -> Tensor:
        """images [b, c, h, w], uint8 or floats in [0, 1] -> floats in [0, 1]. `first` is the first image's number."""
        images = to_float(images)
        return self.changed(images, self.draws(images, seed, first), strength)

    def draws(self, images: Tensor, seed: int, first: int = 0) -> Tensor:
        """One draw per image: made on the CPU, so that they are the same on every device, and for whole blocks of
        images, so that it does not matter where a batch begins."""
        _, c, h, w = images.shape
        blocks = [
            self.draw(generator_for("shift", self.name, seed, block), (BLOCK, c, h, w))
            for block in range(first // BLOCK, (first + len(images) - 1) // BLOCK + 1)
        ]
        return torch.cat(blocks)[first % BLOCK :][: len(images)].to(images.device)

    def changed(self, images: Tensor, draws: Tensor, strength: float) -> Tensor:
        if not 0 <= strength <= self.most:
            raise MspcapsError(f"the strength of {self.name} is {strength}, but must lie between 0 and {self.most:g}")
        return self.apply(images, draws, strength).clamp(0, 1) if strength else images


@dataclass(frozen=True)
class ShiftEvaluation:
    """Accuracies in percent: on the images as they are, and for every change at its five strengths."""

    clean: float
    accuracy: Mapping[str, tuple[float, ...]]
    n: int
    seed: int

    def __repr__(self) -> str:
        return f"ShiftEvaluation({self.clean:.2f} % of {self.n:,} images right, changed {self.mean:.2f} % on average)"

    @property
    def means(self) -> dict[str, float]:
        """Mean accuracy of each change over its strengths."""
        return {name: statistics.fmean(values) for name, values in self.accuracy.items()}

    @property
    def mean(self) -> float:
        """Mean accuracy over changes and strengths."""
        return statistics.fmean(self.means.values())


def evaluate_shifts(
    model: nn.Module | str | Path,
    data: Data,
    changes: Sequence[str] = (),
    seed: int = 0,
    batch_size: int = 500,
    device: torch.device | str | None = None,
    progress: ProgressFn = no_progress,
) -> ShiftEvaluation:
    """Accuracy on changed images; `changes` are names in CHANGES, by default all of them.

    The other arguments are those of `evaluate`.
    """
    if batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    chosen = [_change(name) for name in changes or CHANGES]
    model, images, labels, _ = prepare(model, data, device)
    place, batch_size = placement(model)[0], limit_batch(unwrapped(model), batch_size)
    right, clean, done = torch.zeros(len(chosen), len(chosen[0].strengths), dtype=torch.int64), 0, 0
    for start in range(0, len(images), batch_size):
        x, y = to_float(images[start : start + batch_size].to(place)), labels[start : start + batch_size]

        def count_right(x: Tensor, y: Tensor = y) -> int:
            scores = all_scores(model, x, batch_size)
            check_labels(y, scores.shape[1])
            return int((scores.argmax(1) == y).sum())

        clean += count_right(x)
        for i, change in enumerate(chosen):
            draws = change.draws(x, seed, start)
            for j, strength in enumerate(change.strengths):
                right[i, j] += count_right(change.changed(x, draws, strength))
                done += len(x)
                progress("evaluating changed images", done, len(images) * right.numel())
    percent = (100 * right.double() / len(images)).tolist()
    accuracy = {change.name: tuple(row) for change, row in zip(chosen, percent, strict=True)}
    return ShiftEvaluation(100 * clean / len(images), accuracy, len(images), seed)


def _change(name: str) -> Change:
    if name not in CHANGES:
        hint = nearest(name, CHANGES, f"the changes are {', '.join(CHANGES)}.")
        raise MspcapsError(f"there is no change {name!r}: {hint}")
    return CHANGES[name]


def warp(images: Tensor, matrices: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Transform every image by its matrix about its centre, then move it by its offset: bilinear, with black outside.

    images [b, c, h, w], matrices [b, 2, 2] and offsets [b, 2] on (row, column) in pixels -> [b, c, h, w]
    """
    b, c, h, w = images.shape
    middle = torch.tensor([(h - 1) / 2, (w - 1) / 2], dtype=torch.float64, device=images.device)
    rows, columns = (torch.arange(side, dtype=torch.float64, device=images.device) for side in (h, w))
    target = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).view(1, h * w, 2)
    moved = target - middle - (0.0 if offsets is None else offsets.double()[:, None])
    # einsum: b image, p pixel, i source coordinate, o target coordinate -> where each pixel comes from [b, p, i]
    source = torch.einsum("bio,bpo->bpi", torch.linalg.inv(matrices.double()), moved) + middle
    corner = source.floor()
    part, (top, left) = (source - corner).to(images.dtype), corner.long().unbind(-1)
    flat, result = images.flatten(2), torch.zeros(b, c, h * w, dtype=images.dtype, device=images.device)
    for i in (0, 1):
        for j in (0, 1):
            row, column = top + i, left + j
            inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
            weight = (part[..., 0] if i else 1 - part[..., 0]) * (part[..., 1] if j else 1 - part[..., 1])
            index = row.clamp(0, h - 1) * w + column.clamp(0, w - 1)
            result += flat.gather(2, index[:, None].expand(b, c, h * w)) * (weight * inside)[:, None]
    return result.view(b, c, h, w)


def rotate(images: Tensor, sides: Tensor, degrees: float) -> Tensor:
    """Counterclockwise where the side is 1, clockwise where it is -1."""
    angle = sides.double() * math.radians(degrees)
    rows = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1)
    return warp(images, rows.view(-1, 2, 2))


def shift(images: Tensor, directions: Tensor, distance: float) -> Tensor:
    """By whole pixels, along a direction in radians."""
    h, w = images.shape[2:]
    along = torch.stack([directions.sin() * h, directions.cos() * w], -1)
    return warp(images, _identity(images), (distance * along).round())


def scale(images: Tensor, sides: Tensor, amount: float) -> Tensor:
    """Larger by the factor 1 + amount where the side is 1, smaller by it where the side is -1."""
    factor = (1 + amount) ** sides.double()
    return warp(images, _identity(images) * factor.view(-1, 1, 1))


def shear(images: Tensor, sides: Tensor, amount: float) -> Tensor:
    """Each row moves sideways by `amount` times its height above the centre."""
    matrices = _identity(images)
    matrices[:, 1, 0] = -amount * sides
    return warp(images, matrices)


def add_noise(images: Tensor, noise: Tensor, deviation: float) -> Tensor:
    return images + deviation * noise


def blur(images: Tensor, _: Tensor, width: float) -> Tensor:
    """By a Gaussian with this standard deviation, cut off at three of them; the border is replicated."""
    return gaussian_blur(images, width * min(images.shape[2:]))


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """[b, c, h, w] -> the same, by a Gaussian with this standard deviation in pixels."""
    b, c, h, w = images.shape
    reach = math.ceil(3 * sigma)
    steps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = (-0.5 * (steps / sigma) ** 2).exp()
    kernel = kernel / kernel.sum()
    padded = F.pad(images.reshape(b * c, 1, h, w), (reach, reach, reach, reach), mode="replicate")
    with full_precision(images.device):  # with TF32 the images would differ from those of a CPU
        blurred = F.conv2d(F.conv2d(padded, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return blurred.view(b, c, h, w)


def occlude(images: Tensor, places: Tensor, part: float) -> Tensor:
    """A rectangle of this fraction of both sides, somewhere inside, takes the mean colour of the image."""
    h, w = images.shape[2:]
    covered = rectangles(places, (round(part * h), round(part * w)), images)
    return torch.where(covered, images.mean((2, 3), keepdim=True), images)


def lower_contrast(images: Tensor, _: Tensor, amount: float) -> Tensor:
    """Move every pixel this fraction of the way to the mean brightness of the image."""
    return images.lerp(images.mean((1, 2, 3), keepdim=True).expand_as(images), amount)


def _identity(images: Tensor) -> Tensor:
    return torch.eye(2, dtype=torch.float64, device=images.device).repeat(len(images), 1, 1)


def _side(generator: torch.Generator, shape: Shape) -> Tensor:
    return torch.randint(2, shape[:1], generator=generator) * 2.0 - 1


def _direction(generator: torch.Generator, shape: Shape) -> Tensor:
    return torch.rand(shape[:1], generator=generator) * 2 * math.pi


def _place(generator: torch.Generator, shape: Shape) -> Tensor:
    return torch.rand(shape[0], 2, generator=generator)


def _normal(generator: torch.Generator, shape: Shape) -> Tensor:
    return torch.randn(shape, generator=generator)


def _nothing(_: torch.Generator, shape: Shape) -> Tensor:
    return torch.zeros(shape[0], 0)


CHANGES: Mapping[str, Change] = {
    change.name: change
    for change in (
        Change("rotation", "degrees", (10, 20, 30, 45, 60), 180, _side, rotate),
        Change("shift", "of the side", (0.05, 0.1, 0.15, 0.2, 0.3), 1, _direction, shift),
        Change("scale", "larger or smaller", (0.1, 0.2, 0.3, 0.4, 0.5), 10, _side, scale),
        Change("shear", "of the height", (0.1, 0.2, 0.3, 0.4, 0.5), 10, _side, shear),
        Change("noise", "standard deviation", (0.02, 0.05, 0.1, 0.15, 0.2), 10, _normal, add_noise),
        Change("blur", "of the side", (0.015, 0.025, 0.035, 0.05, 0.07), 1, _nothing, blur),
        Change("occlusion", "of each side", (0.2, 0.3, 0.4, 0.5, 0.6), 1, _place, occlude),
        Change("contrast", "removed", (0.2, 0.4, 0.6, 0.75, 0.9), 1, _nothing, lower_contrast),
    )
}
