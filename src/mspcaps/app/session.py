"""A model, a picture and the changes made to it -> what the page shows. Independent of any browser."""

from dataclasses import dataclass

import torch

from mspcaps.app.perturb import Changes, perturb
from mspcaps.app.uploads import decode_picture
from mspcaps.explanation import explain
from mspcaps.explanation.view import make_view
from mspcaps.models import Model, config_of
from mspcaps.pages import Bar, macro


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
    config = config_of(model)
    pixels = torch.from_numpy(decode_picture(picture, config["img_size"], config["in_chans"]))
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
