"""Changes to a picture before the model sees it: rotation, then noise, then an attack."""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.data import Augmentation
from mspcaps.data.augment import augment_images, generator_for
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks import fgsm

RANGES = {"rotation": (-180.0, 180.0), "noise": (0.0, 64.0), "fgsm": (0.0, 16.0)}


@dataclass(frozen=True)
class Changes:
    """None by default."""

    rotation: float = 0.0  # degrees, clockwise
    noise: float = 0.0  # standard deviation of Gaussian noise, in units of 1/255
    fgsm: float = 0.0  # budget per pixel and channel, in units of 1/255

    @classmethod
    def from_request(cls, **values: Any) -> "Changes":
        """Check the values that a browser sends."""
        numbers = {}
        for name, value in values.items():
            low, high = RANGES[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise MspcapsError(f"{name} must be a number from {low:g} to {high:g}, not {repr(value)[:40]}")
            numbers[name] = float(value)
        return cls(**numbers)

    @property
    def any(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def perturb(model: nn.Module, pixels: Tensor, changes: Changes) -> Tensor:
    """uint8 [c, h, w] -> float32 [1, c, h, w] in [0, 1], on the device of the model.

    The noise pattern is always the same and only its strength varies, so that a slider changes one thing. The attack
    leads away from the answer that the model gives to the rotated, noisy picture.
    """
    x = rotate(pixels, changes.rotation)
    if changes.noise:
        noise = torch.randn(x.shape, generator=generator_for("app", "noise", *x.shape))
        x = (x + changes.noise / 255 * noise).clamp(0, 1)
    x = x.to(next(model.parameters()).device)
    if changes.fgsm:
        with torch.no_grad():
            predicted = model(x).argmax(1)
        x = fgsm(model, x, predicted, changes.fgsm / 255)
    return x


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """uint8 [c, h, w] -> float32 [1, c, h, w] in [0, 1], about the centre; new corners are black, as in training."""
    draws = torch.tensor([[0.0, 0.0, 0.0, math.radians(degrees)]])
    return augment_images(pixels[None], torch.tensor([0]), draws, Augmentation(rotate=abs(degrees)))
