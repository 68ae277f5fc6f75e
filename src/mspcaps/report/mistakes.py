"""Heat maps of a model's most confident mistakes, as many as a few seconds allow."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from torch import nn

from mspcaps.data import ImageSet
from mspcaps.evaluation import Evaluation
from mspcaps.explanation import explain
from mspcaps.explanation.view import make_view
from mspcaps.models import Model, unwrapped

MAX_EXPLAINED = 6
MAX_SECONDS = 5.0  # for all of them together; large images on a CPU would take minutes


@dataclass(frozen=True)
class Maps:
    """Heat maps for the answer and for the true class, on one scale, each over the pale picture."""

    definitions: Markup
    answer: Markup
    true: Markup


class _TooSlow(Exception):
    """The explanation would not be ready in time."""


def explain_mistakes(model: nn.Module, data: ImageSet, result: Evaluation, wrong: Sequence[int]) -> dict[int, Maps]:
    """Numbers of images -> maps of as many of them as time allows; none if the model cannot be explained.

    There is no map where the model gave the answer only when averaged with the mirror image.
    """
    inner, maps = unwrapped(model), dict[int, Maps]()
    if not isinstance(inner, Model):
        return maps
    end = time.monotonic() + MAX_SECONDS
    for index in wrong[:MAX_EXPLAINED]:
        try:
            explanation = explain(inner, data.images[index][None].float() / 255, stop_at(end))
            view = make_view(explanation, 0, int(result.labels[index]))
        except _TooSlow:
            break
        if [side.label for side in view.sides] != [result.labels[index], result.predictions[index]]:
            continue
        true, answer = (rename_ids(side.heat, index) for side in view.sides)
        maps[index] = Maps(rename_ids(view.definitions, index), answer, true)
    return maps


def stop_at(end: float) -> Callable[[int, int], None]:
    """A progress function that stops an explanation once it is clear that it will not be ready in time."""
    begin = time.monotonic()

    def check(done: int, of: int) -> None:
        now = time.monotonic()
        expected = begin + (now - begin) * of / max(done, 1)
        if now > end or (now - begin > 0.5 and expected > end):
            raise _TooSlow

    return check


def rename_ids(drawing: Markup, number: int) -> Markup:
    """Drawings refer to their picture by id, and this page has many pictures."""
    return Markup(re.sub(r'(\bid="|href="#|url\(#)([\w-]+)', rf"\1\2-{number}", str(drawing)))
