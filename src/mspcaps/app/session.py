"""One question, one answer: a model, a picture and what is done to it -> what the page shows. No browser in here."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mspcaps.app import view
from mspcaps.app.perturb import Changes, perturbed
from mspcaps.app.uploads import picture_pixels
from mspcaps.errors import MspcapsError
from mspcaps.explanation.explanation import Explanation, explain, explainable
from mspcaps.models import class_names, config_of


@dataclass(frozen=True)
class Answer:
    """Two pieces of the page as HTML, and what they say as data."""

    label: str  # the winning class
    lengths: dict[str, float]  # of every class capsule; a probability where the model has no capsules
    view: str
    tree: str


def answer(
    model: nn.Module, picture: object, changes: Changes = Changes(), truth: str | None = None  # noqa: B008 - frozen
) -> Answer:  # fmt: skip
    """`picture` is the text returned by `uploads.accept`, `truth` its class if known. Bad input is an MspcapsError."""
    config = config_of(model)
    pixels = torch.from_numpy(picture_pixels(picture, config["img_size"], config["in_chans"]))
    untouched = lengths_of(model, perturbed(model, pixels, Changes())) if changes.any else None
    x = perturbed(model, pixels, changes)
    try:
        explainable(model)
    except MspcapsError as why:
        return plain(model, x, untouched, truth, str(why))
    found = explain(model, x)
    sides = both_sides(found)
    return Answer(
        found.classes[sides[0].label],
        named(found.lengths[0], found.classes),
        view.explained(found, sides, untouched, truth),
        view.trees(found, sides),
    )


def both_sides(found: Explanation) -> list[view.Side]:
    """Of one picture: the winner and the runner-up."""
    return [
        view.Side(label, found.tree(0, label), found.parts(0, label), found.heat_map(label)[0].cpu())
        for label in found.ranking[0, :2].tolist()
    ]


def plain(model: nn.Module, x: Tensor, untouched: Tensor | None, truth: str | None, why: str) -> Answer:
    """Of a model whose routing cannot be followed: lengths, or probabilities, and the picture."""
    lengths, classes = lengths_of(model, x), class_names(model)
    name = classes[int(lengths.argmax())]
    return Answer(name, named(lengths, classes), view.plain(x[0], lengths, classes, untouched, truth, why), "")


@torch.no_grad()
def lengths_of(model: nn.Module, x: Tensor) -> Tensor:
    """[K] on the CPU, in [0, 1]."""
    scores = model(x)[0].float().cpu()
    return scores if model.scores == "lengths" else scores.softmax(0)


def named(lengths: Tensor, classes: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(classes, lengths.tolist(), strict=True))
