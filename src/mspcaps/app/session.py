"""A model, a picture and the changes made to it -> what the page shows. Independent of any browser."""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.app.uploads import decode_picture
from mspcaps.data import Augmentation
from mspcaps.data.augment import augment_images, generator_for
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks import fgsm
from mspcaps.explanation import explain
from mspcaps.explanation.view import make_view
from mspcaps.models import Model
from mspcaps.pages import Bar, macro

RANGES = {"rotation": (-180.0, 180.0), "noise": (0.0, 64.0), "fgsm": (0.0, 16.0)}


@dataclass(frozen=True)
class Changes:
    """Changes to a picture before the model sees it: rotation, then noise, then an attack. None by default."""

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


@dataclass(frozen=True)
class Answer:
    """Two pieces of the page as HTML, and their content as data."""

    label: str  # the winning class
    presence: dict[str, float]  # of every class: the length of its capsule, or its probability
    view: str  # the answer with parts and heat maps
    routing: str  # the part-whole tree, or the couplings; empty where the model has neither


def answer(
    model: Model, picture: object, changes: Changes = Changes(), truth: str | None = None  # noqa: B008 - frozen
) -> Answer:  # fmt: skip
    """`picture` is the text returned by `uploads.accept`, `truth` its class if known. Bad input is an MspcapsError."""
    pixels = torch.from_numpy(decode_picture(picture, model.img_size, model.in_chans))
    explanation = explain(model, perturb(model, pixels, changes))
    view, before = make_view(explanation), None
    if changes.any:
        untouched = explain(model, perturb(model, pixels, Changes()))
        number = int(untouched.ranking[0, 0])
        before = Bar(untouched.classes[number], float(untouched.presence[0, number]))
    return Answer(
        label=view.answer.name,
        presence=dict(zip(explanation.classes, explanation.presence[0].tolist(), strict=True)),
        view=macro("app.html", "answer")(view, truth if truth in explanation.classes else None, before),
        routing=macro("app.html", "routing")(view).strip(),
    )


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
