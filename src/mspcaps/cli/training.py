"""`mspcaps train` and `mspcaps sweep`: runs, what can be changed about them, and how they are stopped."""

import os
import signal
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.options import Maybe
from mspcaps.cli.progress import TensorBoard
from mspcaps.errors import MspcapsError
from mspcaps.progress import Lines, clock, training_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mspcaps.training import Recipe, Trainer
    from mspcaps.training.trainer import Listener

Form = Literal["eager", "compiled", "captured"]


@dataclass(frozen=True)
class AugmentChanges:
    """Augmentation of the training images; default: as in the recipe."""

    crop: Maybe[int] = None
    """Padding in pixels before a random crop."""
    flip: Maybe[bool] = None
    """Flip images horizontally at random."""
    rotate: Maybe[float] = None
    """Largest angle of a random rotation, in degrees."""


@dataclass(frozen=True)
class ScaleChanges:
    """Factors applied to the initial weights, by kind."""

    votes: Maybe[float] = None
    """Factor on the vote weights of the routing."""
    positions: Maybe[float] = None
    """Factor on the position embeddings."""
    convolutions: Maybe[float] = None
    """Factor on the convolution weights."""


@dataclass(frozen=True)
class Changes:
    """Changes to the recipe, which become part of the run's name; default: as in the recipe."""

    model: Maybe[str] = None
    """Model name, as listed by `mspcaps models`."""
    data: Maybe[str] = None
    """Data set name, or path of an .npz file or of a folder with one subfolder per class."""
    name: Maybe[str] = None
    """Name of the run in paths and in the ledger."""
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
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    min_lr: Maybe[float] = None
    """Learning rate that the cosine decays to."""
    img_size: Maybe[int] = None
    """Images are resized to this side length (square)."""
    augment: AugmentChanges = field(default_factory=AugmentChanges)
    balance: Maybe[bool] = None
    """Draw every class equally often in an epoch, however many images it has."""
    init: Maybe[str] = None
    """Initial weights: a shipped name such as mspcaps_t.cifar10, or a weights file."""
    initial_scale: ScaleChanges = field(default_factory=ScaleChanges)
    held_out: Maybe[int] = None
    """Measure on this many held-out training images instead of the test set."""
    seed: Maybe[int] = None
    """Determines initial weights, image order and augmentation."""


def train(
    recipe: Positional[Maybe[str]] = None,
    changes: Annotated[Changes, tyro.conf.arg(name="")] = Changes(),  # noqa: B008 - frozen
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Maybe[str] = None,
    form: Maybe[Form] = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    log_dir: Maybe[Path] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train a recipe, or --model on --data. An interrupted run continues from its checkpoint.

    Args:
        recipe: A name shown by --list, such as paper/cifar10/mspcaps_t, or the path of a .toml file.
        list: List the recipes and exit.
        device: cpu or cuda; default: the GPU if there is one.
        form: How training steps are executed; default: the fastest form the device supports.
        out: Folder for weights and checkpoints.
        results: Folder of the ledger: one JSON file per finished run.
        log_dir: Also log loss, learning rate and accuracy for TensorBoard to this folder.
        overwrite: Retrain a finished run and replace its ledger entry.
    """
    from mspcaps import train as run
    from mspcaps.files import sha256_of
    from mspcaps.training import list_recipes
    from mspcaps.training.checkpoint import run_folder
    from mspcaps.training.ledger import REPEATS, entry_path, is_in_ledger, last_accuracy, read_entry
    from mspcaps.training.recipe import measured_on
    from mspcaps.training.setup import count_custom_images

    if list:
        print("\n".join(list_recipes()))
        return
    chosen = choose_recipe(recipe, changes)
    done = run_folder(out, chosen) / "last.safetensors"
    if not overwrite and done.is_file() and is_in_ledger(results, chosen, count_custom_images(chosen)):
        twice = entry_path(results / REPEATS, chosen)
        repeated = twice.is_file() and read_entry(twice).get("weights_sha256") == sha256_of(done)
        last = last_accuracy(results / REPEATS if repeated else results, chosen)
        print(
            f"already done: {last:.2f} % after the last epoch; --overwrite retrains it, --seed or --name starts another"
        )
        print(f"weights: {done}")
        return
    board = TensorBoard(log_dir) if log_dir else None
    with resumable_progress(board) as (listener, stop):
        result = run(
            chosen, device, form=form, out=out, results=results, listener=listener, stop=stop, overwrite=overwrite
        )
    if result.entry:  # one process of several speaks
        accuracy, seconds = result.entry["accuracy"], result.entry["seconds"]["train"]
        best = f"best {accuracy['best']:.2f} % after epoch {accuracy['best_epoch']}"
        where = measured_on(result.recipe.held_out)
        print(f"{where} accuracy {accuracy['last']:.2f} % after the last epoch, {best}; trained for {clock(seconds)}")
        print(f"weights: {result.folder / 'last.safetensors'}")


def choose_recipe(name: str | None, changes: Changes) -> "Recipe":
    """The recipe with the changes of the command line; own images of which they say no batch get one that fits."""
    from mspcaps.training import Recipe, load_recipe, override
    from mspcaps.training.recipe import filled
    from mspcaps.training.setup import count_custom_images, custom_img_size, default_augmentation, fitting_batch

    given: dict[str, Any] = {key: value for key, value in vars(changes).items() if value is not None}
    augment = {key: value for key, value in asdict(given.pop("augment")).items() if value is not None}
    scale = {key: value for key, value in asdict(given.pop("initial_scale")).items() if value is not None}
    if name is not None:
        recipe = load_recipe(name)
    elif "data" in given:
        recipe = Recipe(name="custom", data=given["data"], model=given.get("model", "mspcaps_t"))
        if "batch_size" not in given and (images := count_custom_images(override(recipe, **given))) is not None:
            given["batch_size"] = fitting_batch(images)
    else:
        raise MspcapsError("say what to train: a recipe (`mspcaps train --list`), or --data FOLDER --model NAME")
    if augment:
        whole = filled(override(recipe, **given))
        given["augment"] = replace(whole.augment or default_augmentation(custom_img_size(whole)), **augment)
    if scale:
        given["initial_scale"] = recipe.initial_scale | scale
    return override(recipe, **given)


@contextmanager
def resumable_progress(board: TensorBoard | None = None) -> "Iterator[tuple[Listener, threading.Event]]":
    """A listener that shows progress, and what Ctrl-C sets: the run then saves its checkpoint and ends, and the user is
    told how to go on. Of several processes the one that leads shows and tells."""
    from mspcaps.training import Stopped

    seen: dict[str, Trainer] = {}
    try:
        with ExitStack() as shown, interruptible() as stop:
            listeners: list[Listener] = []

            def listener(trainer: "Trainer") -> None:
                if "trainer" not in seen and trainer.world.is_main:
                    listeners.append(shown.enter_context(training_progress()))
                    if board:
                        listeners.append(board)
                        shown.callback(board.close)
                seen["trainer"] = trainer
                for show in listeners:
                    show(trainer)

            yield listener, stop
    except (KeyboardInterrupt, Stopped):
        trainer = seen.get("trainer")
        if trainer is None or trainer.world.is_main:
            print(how_to_resume(trainer), file=sys.stderr)
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
        return "stopped before the first checkpoint: nothing was saved"
    return f"stopped; the same command continues from the checkpoint in {trainer.folder}"


def sweep(
    file: Positional[Path],
    budget: Maybe[str] = None,
    device: Maybe[str] = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
) -> int:
    """Train the runs of a file that the ledger does not have yet, in order, side by side where that is faster.

    Args:
        file: TOML file with a list of [[runs]]: each has a recipe, optional seeds, and any recipe fields to change.
        budget: Start no run that cannot finish within this time: 540s, 9m, 2h.
        device: cpu or cuda; default: the GPU if there is one.
        out: Folder for weights and checkpoints.
        results: Folder of the ledger.
    """
    from mspcaps.models import weights_path
    from mspcaps.training import choose_device
    from mspcaps.training.sweep import load_sweep, run_sweep

    recipes, seconds = load_sweep(file), parse_duration(budget) if budget else float("inf")
    lines = Lines(every=30.0, named=True)
    with interruptible() as stop:
        outcomes = run_sweep(
            recipes, choose_device(device), seconds, out, results, partial(print, flush=True), lines, weights_path, stop
        )
    if stop.is_set():
        print(f"stopped; the same command continues from the checkpoints in {out}", file=sys.stderr)
        raise KeyboardInterrupt
    counts = Counter(outcome.state for outcome in outcomes)
    words = {"known": "already in the ledger", "left": "not started"}
    print(", ".join(f"{count} {words.get(state, state)}" for state, count in counts.items()))
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
        raise MspcapsError(f"--budget is {text!r}, but must be a time such as 540s, 9m or 2h")
    return seconds
