"""What the attacks share: input checks, the best images so far, and random numbers tied to an image."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.models.layers import check_floating, check_labels, hash_words, in_eval_mode

Scores = Callable[[Tensor], Tensor]  # images [b, c, h, w] -> [b, K]


def check_eps(eps: float) -> None:
    if not (math.isfinite(eps) and 0 <= eps <= 1):
        raise MspcapsError(f"eps is {eps}, but must lie between 0 and 1, such as 8/255")


def check_images(x: Tensor) -> None:
    """Refuse anything but a batch of images in [0, 1]: a budget in pixel units would be meaningless."""
    check_floating(x)
    if x.ndim != 4 or not len(x):
        raise MspcapsError(f"images must be a batch [b, channels, height, width], not {tuple(x.shape)}")
    if x.dtype in (torch.float16, torch.bfloat16):
        raise MspcapsError(
            f"images are {x.dtype}, too coarse for a budget of a few 255ths: use float32, and model.float()"
        )
    low, high = (float(value) for value in x.aminmax())
    if not (low >= 0 and high <= 1):
        raise MspcapsError(
            f"images run from {low:g} to {high:g}, but must lie in [0, 1]: normalise them inside the model"
        )


@contextlib.contextmanager
def attacked(model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int = 1, restarts: int = 1) -> Iterator[int]:
    """Check all input and yield the number of classes. Inside, the model is in eval mode, without autocast: BatchNorm
    must not mix the images of a batch, nor learn from them. On a GPU convolutions may use TF32, PyTorch's default;
    `full_precision` around the call forbids it."""
    check_eps(eps)
    check_images(x)
    if steps < 1 or restarts < 1:
        raise MspcapsError(f"{steps} steps and {restarts} restarts: there must be at least one of each")
    with in_eval_mode(model), torch.autocast(x.device.type, enabled=False):
        with torch.no_grad():
            scores = model(x[:1])
        if scores.ndim != 2 or scores.shape[1] < 2:
            raise MspcapsError(f"the model must give scores [b, classes], not {tuple(scores.shape)} for one image")
        check_labels(y.cpu(), scores.shape[1])
        if len(y) != len(x) or y.dtype != torch.int64:
            raise MspcapsError(f"{len(x)} images need as many int64 labels, not {len(y)} of {y.dtype}")
        yield scores.shape[1]


class Adversarial:
    """For every image, the first version that the model gets wrong, or else the last version tried."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.y, self.images = y, x.detach()
        self.fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def update(self, images: Tensor, scores: Tensor) -> None:
        """New versions of all images; does not wait for the device."""
        self.images = torch.where(spread(self.fooled), self.images, images.detach())
        self.fooled = self.fooled | (scores.detach().argmax(1) != self.y)

    def update_at(self, index: Tensor, images: Tensor, fooled: Tensor) -> None:
        """New versions of some of the images, and whether they fool the model."""
        before = self.fooled[index]
        images = torch.where(spread(before), self.images[index], images.detach())
        self.images = self.images.index_copy(0, index, images)
        self.fooled = self.fooled.index_copy(0, index, before | fooled)

    def survivors(self) -> Tensor:
        """Indices of the images that have not fooled the model yet."""
        return (~self.fooled).nonzero().squeeze(1)


def spread(values: Tensor) -> Tensor:
    """[b] -> [b, 1, 1, 1]"""
    return values.view(-1, 1, 1, 1)


Attempt = Callable[[Tensor, Tensor, "Draws"], Adversarial]  # images, labels, random numbers


def run_attempts(attempts: Iterable[Attempt], scores: Scores, x: Tensor, y: Tensor, draws: "Draws") -> Tensor:
    """Each attempt on the images that survived those before it; images that are wrong to begin with stay unchanged."""
    result = Adversarial(x, y)
    with torch.no_grad():
        result.update(x, scores(x))
    for attempt in attempts:
        index = result.survivors()
        if not len(index):
            break
        tried = attempt(x[index], y[index], draws.of(index))
        result.update_at(index, tried.images, tried.fooled)
    return result.images


@dataclass(frozen=True)
class Draws:
    """Random numbers of each image: a hash of (seed, number of the image, draw, place), on the device.

    They do not depend on the batch that an image is in, nor on the other images.
    """

    keys: Tensor  # [b, 1]

    @classmethod
    def for_images(cls, seed: int, x: Tensor, numbers: Tensor | None = None) -> "Draws":
        """Without `numbers` the images are numbered from 0."""
        numbers = torch.arange(len(x), device=x.device) if numbers is None else numbers.to(x.device)
        key = torch.tensor([[seed & 0x7FFFFFFF]], device=x.device)
        return cls(wide_key(hash_words(key | key << 32, numbers[:, None] * 2 + numbers.new_tensor([0, 1]))))

    def of(self, index: Tensor) -> "Draws":
        """The draws of some of the images."""
        return Draws(self.keys[index])

    def uniform(self, draw: int, count: int) -> Tensor:
        """-> [b, count] in [0, 1)"""
        pair = torch.arange(2 * draw, 2 * draw + 2, device=self.keys.device)  # made there, to avoid a blocking copy
        key = wide_key(hash_words(self.keys, pair))
        words = hash_words(key, torch.arange(count, device=self.keys.device))
        return (words >> 8).float() / 2**24

    def within(self, x: Tensor, draw: int) -> Tensor:
        """-> like x, in [-1, 1)"""
        return (2 * self.uniform(draw, x[0].numel()) - 1).view(x.shape).to(x.dtype)

    def start(self, x: Tensor, eps: float, draw: int) -> Tensor:
        """Random images within eps of x and within [0, 1]."""
        return (x + eps * self.within(x, draw)).clamp(0, 1)


def wide_key(words: Tensor) -> Tensor:
    """Two words [b, 2] -> one key of 63 bits [b, 1]."""
    return words[:, :1] | (words[:, 1:] >> 1) << 32
