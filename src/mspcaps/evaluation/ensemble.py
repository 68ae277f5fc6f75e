"""An ensemble of models, which answers by the mean of their scores."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from mspcaps.data import FolderImages
from mspcaps.errors import MspcapsError, silent, warn
from mspcaps.evaluation.accuracy import Data, Evaluation, evaluate, measure
from mspcaps.evaluation.load import load_for, trained_on
from mspcaps.files import ProgressFn, no_progress
from mspcaps.models import as_model, config_of, unwrapped


def evaluate_ensemble(
    models: Sequence[nn.Module | str | Path],
    data: Data | None = None,
    split: str = "test",
    batch_size: int = 500,
    device: torch.device | str | None = None,
    progress: ProgressFn = no_progress,
    skip_broken: bool = False,
    tell: Callable[[str], None] = warn,
    flip: bool = False,
) -> tuple[Evaluation, list[Evaluation]]:
    """Measure models on the same images -> the ensemble, whose scores are the mean of theirs, and each by itself.

    `models` and `data` are as in `evaluate`. If `data` is a name, every model gets the images of the `split` in its own
    image size; the default is the data that the first model was trained on. With `skip_broken`, pictures that cannot be
    read are left out, and `tell` receives a sentence about them. `flip` is as in `evaluate`.
    """
    members = [as_model(model) for model in models]
    if len(members) < 2:
        raise MspcapsError(f"an ensemble needs at least two models, not {len(members)}")
    check_alike(members)
    if data is None:
        data = trained_on(members[0])
    if skip_broken and isinstance(data, FolderImages):
        data = data.readable(tell)
    results = []
    for number, member in enumerate(members, start=1):
        report = with_suffix(progress, f" with model {number} of {len(members)}")
        if data is None or isinstance(data, str | Path):
            images: Data = load_for(member, data, split, report, skip_broken=skip_broken, tell=tell)
            tell = silent  # the same pictures are broken for every model
        else:
            images = data
        results.append(evaluate(member, images, batch_size, device, report, flip=flip))
        if not torch.equal(results[-1].labels, results[0].labels):
            raise MspcapsError(f"model {number} numbers the classes in a different order than model 1")
    scores = torch.stack([result.scores for result in results]).mean(0)  # [n, K]
    return measure(unwrapped(members[0]), scores, results[0].labels, results[0].classes, flip=flip), results


def with_suffix(progress: ProgressFn, suffix: str) -> ProgressFn:
    return lambda what, done, total: progress(what + suffix, done, total)


def check_alike(members: Sequence[nn.Module]) -> None:
    """Refuse models whose scores cannot be averaged: lengths with logits, or scores of different classes."""
    first, *others = (unwrapped(member) for member in members)
    for number, other in enumerate(others, start=2):
        for what, expected, actual in (
            ("classes", *(config_of(model)["num_classes"] for model in (first, other))),
            ("classes", *(getattr(model, "metadata", {}).get("classes") for model in (first, other))),
            ("scores", *(getattr(model, "scores", "logits") for model in (first, other))),
        ):
            if actual != expected:
                raise MspcapsError(
                    f"model {number} of the ensemble has other {what} than model 1 ({actual!s:.80}, not "
                    f"{expected!s:.80}): leave it out"
                )
