"""The content of the page of a finished run, and of the page of evaluated weights."""

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from mspcaps import __version__
from mspcaps.data import CATALOG, FolderImages, ImageSet, facts, open_folder, provenance
from mspcaps.data.folder import is_picture_folder
from mspcaps.data.imageset import random_numbers
from mspcaps.data.load import has_validation
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import Evaluation, evaluate
from mspcaps.files import format_duration, weights_name
from mspcaps.models import config_of, unwrapped
from mspcaps.report.evaluation import Page, number
from mspcaps.training import Result
from mspcaps.training.result import BEST

PAGE = "index.html"  # in the folder of a run
MAX_IMAGES = 10_000  # evaluated for the page of a run
MAX_BYTES = 1 << 29  # of pixels in these images
IMAGES = {"test": "test images", "train": "training images", "val": "validation images"}  # by split

Pairs = list[tuple[str, str]]


def run_page(result: Result) -> Page:
    """Evaluates the images that the run was measured on, at most MAX_IMAGES: more would take long and add little."""
    if result.images is None:
        raise MspcapsError(
            f"the run in {result.folder} was finished before: `mspcaps eval {result.weights}` writes a page about it"
        )
    recipe, run, data = result.recipe, result.run, sample_images(result.images)
    images_are = "test images" if run.measured_on == "test" else "held-out images"
    evaluation = evaluate(result.model, data)
    title = CATALOG[recipe.data].title if recipe.data in CATALOG else recipe.dataset
    numbers: Pairs = [
        ("parameters", f"{run.params:,}"),
        ("training images", f"{run.images or 0:,}"),
        ("epochs", f"{run.epochs}"),
        ("training time", format_duration(run.seconds.train)),
    ]
    if len(data) < len(result.images):
        reached = run.accuracy.best if result.weights.name == BEST else run.accuracy.last
        numbers.append((f"on all {len(result.images):,} {images_are}", f"{reached:.2f} %"))
    licence = facts(recipe.data).licence if recipe.data in CATALOG else ""
    splits = ("train", "test", "val") if has_validation(recipe.data) else ("train", "test")
    return Page(
        title=f"{recipe.model} on {title}",
        facts=numbers + figures(evaluation),
        evaluation=evaluation,
        data=data,
        commands=next_commands(result.weights, result.model),
        footer=f"Trained on {run.device} in {run.precision}, recipe {recipe.name}, seed {recipe.seed}, with mspcaps "
        f"{run.software['mspcaps']}, PyTorch {run.software['torch']}. {run.provenance} {licence}",
        history=result.history,
        images_are=images_are,
        watched=f"{run.watched} images",
        notes=folder_notes(recipe.data, splits, recipe.skip_broken),
    )


def evaluation_page(
    weights: Sequence[str], model: nn.Module, evaluation: Evaluation, data: ImageSet, source: str, split: str = "test",
    skip_broken: bool = False,
) -> Page:  # fmt: skip
    """The result of `mspcaps eval`: `source` names the data set; several `weights` are an ensemble."""
    params = sum(p.numel() for p in model.parameters())
    size: Pairs = [("parameters", f"{params:,}")] if params and len(weights) == 1 else []  # an exported file has none
    title = CATALOG[source].title if source in CATALOG else data.name
    origin = f"{provenance(source)} {facts(source).licence}" if source in CATALOG else ""
    return Page(
        title=f"{' + '.join(map(weights_name, weights))} on {title}",
        facts=size + figures(evaluation),
        evaluation=evaluation,
        data=data,
        commands=next_commands(weights[0], model) if len(weights) == 1 else [],
        footer=f"Measured with mspcaps {__version__}, PyTorch {torch.__version__}. {origin}",
        images_are=IMAGES.get(split, "images"),
        notes=folder_notes(source, (split,), skip_broken),
    )


def page_path(
    out: Path, weights: Sequence[str], data: str, split: str, part: int | None = None, flip: bool = False
) -> Path:
    """out/mspcaps_t.cifar10/cifar10-test.html"""
    folder = "+".join(map(weights_name, weights)).encode()[:200].decode(errors="ignore")
    which = f"{split}{f'-{part}' if part is not None else ''}{'-flip' if flip else ''}"
    return out / folder / f"{data or 'data'}-{which}.html"


def figures(evaluation: Evaluation) -> Pairs:
    """The figures of an evaluation as a whole."""
    return [
        ("classes", f"{len(evaluation.classes):,}"),
        *([("loss", f"{evaluation.loss:.3f}")] if math.isfinite(evaluation.loss) else []),
        ("mean F1", number(evaluation.class_metrics.f1.nanmean().item(), 1)),
        ("mean AUC", number(evaluation.auc.nanmean().item(), 3)),
        ("calibration error", f"{evaluation.ece:.1f} %"),
        *([("mirror images", "averaged in")] if evaluation.flip else []),
    ]


def next_commands(weights: str | Path, model: nn.Module) -> Pairs:
    """What to do next with weights: (what it does, command)."""
    file, exported = shlex.quote(str(weights)), str(weights).lower().endswith(".onnx")
    commands = []
    if config_of(unwrapped(model))["in_chans"] in (1, 3):  # as pictures have
        commands.append(("Classify a picture of your own:", f"mspcaps predict {file} PICTURE.png"))
        if not exported:
            commands.append(("See why the model decides as it does:", f"mspcaps explain {file} PICTURE.png"))
    if not exported:
        commands += [
            ("See what rotation, noise and blur do to it:", f"mspcaps eval {file} --shifts"),
            ("Use it without PyTorch:", f"mspcaps export {file} model.onnx"),
        ]
    return commands


def folder_notes(source: str, splits: Iterable[str], skip_broken: bool = False) -> list[str]:
    """Sentences about the files in a folder of pictures that were not used, with `skip_broken` also the broken ones."""
    notes: list[str] = []
    if is_picture_folder(source):
        for split in splits:
            pictures = open_folder(Path(source).expanduser(), split)
            notes += pictures.notes
            if skip_broken:
                pictures.readable(notes.append)
    return list(dict.fromkeys(notes))


def sample_images(images: ImageSet | FolderImages) -> ImageSet:
    """All images, or the largest number allowed, chosen at random but always the same; read from disk if need be."""
    most = min(MAX_IMAGES, max(1, MAX_BYTES // (images.channels * math.prod(images.size))))
    if len(images) > most:
        images = images.subset(random_numbers(most, len(images)))
    return images if isinstance(images, ImageSet) else images.resident()
