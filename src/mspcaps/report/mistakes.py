"""Why a model was surest where it was wrong: heat maps of its mistakes, as many as a few seconds allow."""

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
SECONDS = 5.0  # for all of them together; large images on a CPU would take minutes


@dataclass(frozen=True)
class Maps:
    """What speaks for the answer and what for the true class, on one scale, each over the pale picture."""

    definitions: Markup
    answer: Markup
    true: Markup


class _TooSlow(Exception):
    """An explanation that would not be ready in time."""


def explain_mistakes(model: nn.Module, data: ImageSet, told: Evaluation, wrong: Sequence[int]) -> dict[int, Maps]:
    """Numbers of images -> their maps, of the first ones until the time is over; of none if it cannot be explained. An
    answer that the model does not give to the image alone, but together with its mirror image, has none."""
    inner, maps = unwrapped(model), dict[int, Maps]()
    if not isinstance(inner, Model):
        return maps
    end = time.monotonic() + SECONDS
    for index in wrong[:MAX_EXPLAINED]:
        try:
            found = explain(inner, data.images[index][None].float() / 255, stop_at(end))
            view = make_view(found, 0, int(told.labels[index]))
        except _TooSlow:
            break
        if [side.label for side in view.sides] != [told.labels[index], told.predictions[index]]:
            continue
        true, answer = (rename_ids(side.heat, index) for side in view.sides)
        maps[index] = Maps(rename_ids(view.definitions, index), answer, true)
    return maps


def stop_at(end: float) -> Callable[[int, int], None]:
    """A progress function that stops an explanation as soon as it is clear that it will not be ready in time."""
    begin = time.monotonic()

    def check(done: int, of: int) -> None:
        now = time.monotonic()
        expected = begin + (now - begin) * of / max(done, 1)
        if now > end or (now - begin > 0.5 and expected > end):
            raise _TooSlow

    return check


def rename_ids(drawing: Markup, number: int) -> Markup:
    """Drawings refer to their picture by its id, and here are many pictures on one page."""
    return Markup(re.sub(r'(\bid="|href="#|url\(#)([\w-]+)', rf"\1\2-{number}", str(drawing)))
