"""One typed function per command. What is heavy is imported inside, so that --help answers at once."""

import os
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from mspcaps.cli.progress import Lines, Listener, TensorBoard, clock, counting, table, training_progress
from mspcaps.errors import MspcapsError
from mspcaps.files import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mspcaps.pictures import Prediction
    from mspcaps.training import Recipe, Trainer

T = TypeVar("T")
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # left out of the help: its "(default: None)"
Form = Literal["eager", "compiled", "captured"]


@dataclass(frozen=True)
class AugmentChanges:
    """Of the training images; by default what the recipe says."""

    crop: Maybe[int] = None
    """Pixels of padding before a random crop."""
    flip: Maybe[bool] = None
    """Mirror images at random."""
    rotate: Maybe[float] = None
    """Largest angle of a random rotation, in degrees."""


@dataclass(frozen=True)
class ScaleChanges:
    """Factors on the initial weights, by kind."""

    votes: Maybe[float] = None
    """Of the vote weights of the routing."""
    positions: Maybe[float] = None
    """Of the position embeddings."""
    convolutions: Maybe[float] = None
    """Of the convolutions."""


@dataclass(frozen=True)
class Changes:
    """Any field of the recipe can be changed; the name of the run then tells. By default what the recipe says."""

    model: Maybe[str] = None
    """Name of a model, as `mspcaps models` shows it."""
    data: Maybe[str] = None
    """Name of a data set, or the path of a folder of class folders or of an .npz file."""
    name: Maybe[str] = None
    """What this way of training is called in paths and in the ledger."""
    epochs: Maybe[int] = None
    """Passes over the training images."""
    batch_size: Maybe[int] = None
    """Images per step."""
    lr: Maybe[float] = None
    """Peak learning rate of AdamW."""
    weight_decay: Maybe[float] = None
    """Decoupled weight decay."""
    warmup_epochs: Maybe[int] = None
    """Epochs of linear warm-up."""
    warmup_start: Maybe[float] = None
    """Learning rate of the first epoch, as a share of the peak."""
    min_lr: Maybe[float] = None
    """Where the cosine ends."""
    image_size: Maybe[int] = None
    """Side of the square images that the model sees."""
    augment: AugmentChanges = field(default_factory=AugmentChanges)
    balance: Maybe[bool] = None
    """Draw every class equally often in an epoch, however many images it has."""
    init: Maybe[str] = None
    """Shipped weights such as mspcaps_t.cifar10, or a weights file, to begin from."""
    initial_scale: ScaleChanges = field(default_factory=ScaleChanges)
    held_out: Maybe[int] = None
    """Training images kept back to measure on in place of the test set."""
    seed: Maybe[int] = None
    """Decides initial weights, order of images and augmentation."""


def quickstart(out: Path = Path("runs/quickstart"), device: Maybe[str] = None, train: bool = True) -> None:
    """On the embedded sample of FashionMNIST: what shipped weights make of it, then MSPCaps-T trained anew. No network.

    Args:
        out: Folder for the pages and the weights.
        device: cpu or cuda; by default the GPU if there is one.
        train: Whether to train, too, which takes about a minute; the page about the shipped weights takes seconds.
    """
    from mspcaps.report.quickstart import SHIPPED, shipped
    from mspcaps.report.quickstart import quickstart as run

    ready = shipped(out, device)
    print(f"{SHIPPED}, weights that come with the package: {ready.evaluation.accuracy:.1f} % of ", end="")
    print(f"{ready.evaluation.n:,} test images named rightly.\nThe page:  {ready.page}\n")
    if not train:
        return
    print("Training the same model anew on the embedded 5,000 images of FashionMNIST.", flush=True)
    with resumable_progress() as (listener, stop):
        done = run(out, device, listener, stop=stop)
    print(f"{done.evaluation.accuracy:.1f} % of {done.evaluation.n:,} test images named rightly.\n")
    print(f"The page:  {done.page}\n\nTry next:")
    print(f"  mspcaps predict {done.weights} PICTURE.png")
    print("  mspcaps explain mspcaps_t.cifar10 PICTURE.png   # weights that come with the package")
    print("  mspcaps models")
    own = "mspcaps train --data FOLDER --model mspcaps_t --image-size 32 --epochs 30 --batch-size 32"
    print(f"  {own}   # FOLDER/CLASS/*.png")


def models(
    pattern: Positional[str] = "*",
    num_classes: int = 10,
    in_chans: int = 3,
    img_size: tuple[int, ...] = (32,),
    pretrained: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """The models and what they cost: parameters, multiply-adds and memory for training, each per image in fp32.

    Args:
        pattern: Which models, as a shell pattern such as 'mspcaps_t*'.
        num_classes: Number of classes.
        in_chans: Channels of the images.
        img_size: Side of the images, or height and width.
        pretrained: Show the weights that come with the package instead.
    """
    from mspcaps.models import list_models, summarize

    if pretrained:
        show_pretrained(pattern)
        return
    names = list_models(pattern)
    if not names:
        raise MspcapsError(f"no model matches {pattern!r}: `mspcaps models` lists them all")
    if len(img_size) not in (1, 2):
        raise MspcapsError(f"--img-size takes one or two numbers, not {len(img_size)}")
    rows, refusals = [], []
    for name in names:
        try:
            cost = summarize(name, num_classes, in_chans, (img_size[0], img_size[-1]))
        except MspcapsError as error:
            refusals.append(f"{name}: {error}")
            continue
        weights, memory = size_of(cost.weights_bytes), size_of(cost.memory_bytes_per_image)
        rows.append((name, f"{cost.params:,}", f"{cost.macs / 1e6:,.1f} M", memory, weights))
    if not rows:
        raise MspcapsError(refusals[0])
    table(("model", "parameters", "multiply-adds", "memory", "weights file"), rows, right=(1, 2, 3, 4))
    for line in refusals:
        print(line)


def show_pretrained(pattern: str) -> None:
    """The shipped weights: what `eval` and `predict` take as WEIGHTS."""
    from mspcaps.weights import list_pretrained, read_card

    cards = [
        read_card(name) for name in list_pretrained() if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    ]
    if not cards:
        print("no weights come with this version" if pattern == "*" else f"no shipped weights match {pattern!r}")
        return
    rows = [
        (card.name, f"{card.params:,}", f"{card.accuracy:.2f} % of {card.test_images:,}", size_of(card.bytes))
        for card in cards
    ]
    table(("weights", "parameters", "test accuracy", "file"), rows, right=(1, 2, 3))


def train(
    recipe: Positional[Maybe[str]] = None,
    changes: Annotated[Changes, tyro.conf.arg(name="")] = Changes(),  # noqa: B008 - frozen
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Maybe[str] = None,
    form: Maybe[Form] = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    log_dir: Maybe[Path] = None,
    again: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train by a recipe, from its checkpoint if there is one. Without a recipe, --data and --model say what.

    Args:
        recipe: A name that --list shows, such as paper/cifar10/mspcaps_t, or the path of a .toml file.
        list: Show the recipes and do nothing else.
        device: cpu or cuda; by default the GPU if there is one.
        form: How steps run; by default the fastest that the device supports.
        out: Folder for weights and checkpoints.
        results: Folder of the ledger, which gets one JSON file per finished run.
        log_dir: Also write loss, learning rate and accuracy for TensorBoard into this folder.
        again: Train anew what is done already.
    """
    from mspcaps import train as run
    from mspcaps.training import list_recipes
    from mspcaps.training.checkpoint import run_folder
    from mspcaps.training.ledger import entry_path, is_in_ledger, read_entry
    from mspcaps.training.recipe import measured_on

    if list:
        print("\n".join(list_recipes()))
        return
    chosen = choose_recipe(recipe, changes)
    done = run_folder(out, chosen) / "last.safetensors"
    if not again and done.is_file() and is_in_ledger(results, chosen):
        last = read_entry(entry_path(results, chosen))["accuracy"]["last"]
        print(f"done already: {last:.2f} % after the last epoch; --again trains it anew, --seed and --name another one")
        print(f"weights: {done}")
        return
    board = TensorBoard(log_dir) if log_dir else None
    with resumable_progress(board) as (listener, stop):
        result = run(chosen, device, form=form, out=out, results=results, listener=listener, stop=stop)
    if result.entry:  # one process of several speaks
        accuracy, seconds = result.entry["accuracy"], result.entry["seconds"]["train"]
        best = f"best {accuracy['best']:.2f} % after epoch {accuracy['best_epoch']}"
        where = measured_on(result.recipe.held_out)
        print(f"{where} accuracy {accuracy['last']:.2f} % after the last epoch, {best}; trained for {clock(seconds)}")
        print(f"weights: {result.folder / 'last.safetensors'}")


def choose_recipe(name: str | None, changes: Changes) -> "Recipe":
    """The recipe with the changes of the command line."""
    from mspcaps.training import Recipe, load_recipe, override
    from mspcaps.training.recipe import filled
    from mspcaps.training.setup import own_augment, size_of_own

    given: dict[str, Any] = {key: value for key, value in vars(changes).items() if value is not None}
    augment = {key: value for key, value in asdict(given.pop("augment")).items() if value is not None}
    scale = {key: value for key, value in asdict(given.pop("initial_scale")).items() if value is not None}
    if name is not None:
        recipe = load_recipe(name)
    elif "data" in given:
        recipe = Recipe(name="custom", data=given["data"], model=given.get("model", "mspcaps_t"))
    else:
        raise MspcapsError("say what to train: a recipe (`mspcaps train --list`), or --data FOLDER --model NAME")
    if augment:
        whole = filled(override(recipe, **given))
        given["augment"] = replace(whole.augment or own_augment(size_of_own(whole)), **augment)
    if scale:
        given["initial_scale"] = recipe.initial_scale | scale
    return override(recipe, **given)


@contextmanager
def resumable_progress(board: Listener | None = None) -> "Iterator[tuple[Listener, threading.Event]]":
    """A listener that shows progress, and what Ctrl-C sets: the run then saves its checkpoint and ends, and the user is
    told how to go on."""
    from mspcaps.training import Stopped

    seen: dict[str, Trainer] = {}
    try:
        with training_progress() as bar, interruptible() as stop:

            def listener(trainer: "Trainer") -> None:
                seen["trainer"] = trainer
                bar(trainer)
                if board:
                    board(trainer)

            yield listener, stop
    except (KeyboardInterrupt, Stopped):
        print(how_to_resume(seen.get("trainer")), file=sys.stderr)
        raise KeyboardInterrupt from None


@contextmanager
def interruptible() -> "Iterator[threading.Event]":
    """What Ctrl-C sets, so that runs can end in order; a second Ctrl-C ends everything at once.

    KeyboardInterrupt alone would not do: it gets lost when it is raised while torch.compile looks for code that fits,
    and a thread that is just being started is left behind.
    """
    stop = threading.Event()

    def interrupted(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def how_to_resume(trainer: "Trainer | None") -> str:
    from mspcaps.training.checkpoint import CHECKPOINT

    if trainer is None or not (trainer.folder / CHECKPOINT).is_file():
        return "stopped before the first checkpoint: nothing is kept"
    return f"stopped; the same command continues from the checkpoint in {trainer.folder}"


def sweep(
    file: Positional[Path],
    budget: Maybe[str] = None,
    device: Maybe[str] = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
) -> int:
    """Train many runs: those of a file that the ledger lacks, in its order, side by side where that pays.

    Args:
        file: A TOML file with a list of [[runs]], each with a recipe, optional seeds and any field to change.
        budget: Begin nothing that cannot end in this time: 540s, 9m, 2h.
        device: cpu or cuda; by default the GPU if there is one.
        out: Folder for weights and checkpoints.
        results: Folder of the ledger.
    """
    from mspcaps.training import choose_device
    from mspcaps.training.sweep import load_sweep, run_sweep
    from mspcaps.weights import weights_path

    recipes, seconds = load_sweep(file), parse_duration(budget) if budget else float("inf")
    lines: Listener = Lines(every=30.0, named=True)
    with interruptible() as stop:
        outcomes = run_sweep(
            recipes, choose_device(device), seconds, out, results, partial(print, flush=True), lines, weights_path, stop
        )
    if stop.is_set():
        print(f"stopped; the same command continues from the checkpoints in {out}", file=sys.stderr)
        raise KeyboardInterrupt
    counts = Counter(outcome.state for outcome in outcomes)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["failed"] else 0


def parse_duration(text: str) -> float:
    """540s, 9m, 2h or plain seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise MspcapsError(f"a time is written like 540s, 9m or 2h, not {text!r}")
    return seconds


def evaluate(
    weights: Positional[str],
    data: Maybe[str] = None,
    split: Literal["train", "test", "all"] = "test",
    batch_size: int = 500,
    device: Maybe[str] = None,
) -> None:
    """Accuracy, loss and calibration of trained weights, in all and per class.

    Confidence is the winning length over the sum of all lengths (of a model without capsules: softmax); the calibration
    error is the mean gap between it and the accuracy, over 15 bins.

    Args:
        weights: A .safetensors file that mspcaps wrote, or a name that `mspcaps models --pretrained` shows.
        data: Name of a data set or path of a folder or .npz; by default what the weights were trained on.
        split: Which images of it.
        batch_size: Images at a time.
        device: cpu or cuda; by default the GPU if there is one.
    """
    from mspcaps.data import CATALOG
    from mspcaps.evaluation import evaluate as run
    from mspcaps.evaluation import load_for
    from mspcaps.training import choose_device
    from mspcaps.weights import load_model

    model = load_model(weights)
    with counting() as progress:
        images = load_for(model, data, split, progress)
        found = run(model, images, batch_size, choose_device(device), lambda done, of: progress("evaluating", done, of))
    counts = found.confusion.sum(1).tolist()
    rows = [
        (name, f"{count:,}", f"{percent:.2f} %" if count else "-")
        for name, count, percent in zip(found.classes, counts, found.per_class, strict=True)
    ]
    table(("class", "images", "accuracy"), rows, right=(1, 2))
    source = Path(data or vars(model)["about"]["recipe"]["data"]).expanduser()
    own = str(source) not in CATALOG and source.exists()
    print(f"{source.resolve() if own else images.name}, {split}: {found.n:,} images")
    if split == "test" and own and source.is_dir() and not (source / "train").is_dir():
        print("a fifth of each class, which training would hold out; --split all takes every picture")
    print(
        f"accuracy {found.accuracy:.2f} %  mean of the classes {found.mean_per_class:.2f} %  loss {found.loss:.4f}  "
        f"calibration error {found.ece:.2f} % at a mean confidence of {found.confidence:.2f} %"
    )


def predict(
    weights: Positional[str],
    paths: Annotated[Positional[list[Path]], tyro.conf.arg(help_behavior_hint="")],
    top: int = 3,
    device: Maybe[str] = None,
) -> int:
    """Say what is on pictures: the likeliest classes with their scores.

    Args:
        weights: A .safetensors file that mspcaps wrote, a name that `mspcaps models --pretrained` shows, or the .onnx
            file of `mspcaps export`.
        paths: Picture files, or folders of them.
        top: How many classes to show.
        device: cpu or cuda; by default the GPU if there is one. ONNX runs on the CPU.
    """
    if not paths:
        raise MspcapsError("name at least one picture or folder")
    failed = 0
    for prediction in predictions(weights, paths, top, device):
        if prediction.error is None:
            print(f"{prediction.path}: " + ", ".join(f"{name} {score:.3f}" for name, score in prediction.top))
        else:
            print(f"error: {prediction.error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def predictions(weights: str, paths: list[Path], top: int, device: str | None) -> "Iterator[Prediction]":
    """Weights through PyTorch; an exported file through onnxruntime, and then torch is not even imported."""
    if weights.lower().endswith(".onnx"):
        from mspcaps.export.runner import OnnxModel

        if device not in (None, "cpu"):
            raise MspcapsError(f"{weights} runs on the CPU, through onnxruntime: leave --device {device} out")
        return OnnxModel(weights).stream_predictions(paths, top)
    from mspcaps.evaluation import stream_predictions
    from mspcaps.training import choose_device
    from mspcaps.weights import load_model

    return stream_predictions(load_model(weights).to(choose_device(device)), paths, top)


def report(
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    page: Path = Path("runs/report/index.html"),
    readme: Maybe[Path] = None,
) -> None:
    """Write the paper's tables with the runs of the ledger beside its figures, as Markdown and as a page.

    Args:
        results: Folder of the ledger.
        out: Where the Markdown goes; ablations.md with its pictures and speed.md go beside it.
        page: Where the page goes.
        readme: Also rewrite the main table in this file, between its marks.
    """
    from mspcaps.report.markdown import summary
    from mspcaps.report.results import write_report

    print(summary(write_report(results, out, page, readme)))
    print(f"\nMarkdown:  {out}, with ablations.md and speed.md beside it\nThe page:  {page.resolve()}")
    if readme:
        print(f"README:    {readme}")
