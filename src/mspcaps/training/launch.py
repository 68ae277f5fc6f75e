"""`train`: from a recipe to its result, with progress on the way, or straight from the ledger if the run is done."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from mspcaps.errors import MspcapsError
from mspcaps.files import sha256_of
from mspcaps.models import load_model
from mspcaps.progress import Progress, clock, say
from mspcaps.training import ledger
from mspcaps.training.checkpoint import CHECKPOINT
from mspcaps.training.device import Engine, choose_device
from mspcaps.training.ledger import Run
from mspcaps.training.monitor import ShowProgress, TensorBoard, each_epoch
from mspcaps.training.optimizers import learning_rate
from mspcaps.training.recipe import Recipe, load_recipe
from mspcaps.training.result import Epoch, Result, reported_file
from mspcaps.training.trainer import SAVE_EVERY, Listener, Log, Trainer


class Stopped(MspcapsError):
    """The run was told to stop; with several processes, only the main one says how to resume."""


def train(
    recipe: Recipe | str | Path,
    *,
    device: str | torch.device | None = None,
    engine: Engine | None = None,
    out: str | Path = "runs",
    results: str | Path = "results",
    overwrite: bool = False,
    save_every: float = SAVE_EVERY,
    progress: bool = True,
    log_dir: str | Path | None = None,
    listener: Listener | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    stop: threading.Event | None = None,
    log: Log = say,
) -> Result:
    """Train a recipe (a name, the path of a TOML file, or an object); an interrupted run continues from its checkpoint.

    Args:
        recipe: What to compute; change fields with `load_recipe(name).replace(epochs=30)`.
        device: cpu, cuda or mps; default: the GPU if there is one.
        engine: How steps are executed: eager, compile or cudagraph; default: the fastest that the device supports.
        out: Folder for weights and checkpoints.
        results: Folder of the results; the ledger is runs/ inside it, one JSON file per finished run.
        overwrite: Train a finished run again and replace its ledger entry.
        save_every: Seconds between checkpoints.
        progress: Show a progress bar, or plain lines without a terminal, and log what is being done.
        log_dir: Also log loss, learning rate and accuracy for TensorBoard to this folder.
        listener: Called with the trainer after every few steps and every epoch.
        on_epoch: Called with the row of every epoch (epoch, lr, loss, accuracy) when it ends.
        stop: Once it is set, the run saves a checkpoint and raises `Stopped`.
        log: Called with every line that is logged.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    is_main = os.environ.get("RANK", "0") == "0"
    out, results, log = Path(out), Path(results), log if progress and is_main else lambda line: None
    previous = ledger.find_run(results, recipe, overwrite=overwrite)
    if previous and not overwrite and is_finished(out / recipe.run_path, previous):
        finished = load_finished(recipe, out, results, previous)
        log(f"already done: {finished.run.accuracy}; overwrite replaces it, another seed or name starts another run")
        log(f"weights: {finished.weights}")
        return finished
    log_dir = Path(log_dir) / recipe.run_path if log_dir is not None else None
    with combine_listeners(progress, log_dir, listener, each_epoch(on_epoch) if on_epoch else None) as listeners:
        trainer = Trainer(
            recipe, choose_device(device), engine, out, results, save_every, listeners, log=log, stop=stop,
            repeats=previous if not overwrite else None,
        )  # fmt: skip
        result = trainer.run()
    if result is None:
        raise Stopped(trainer.how_to_resume() if is_main else "")
    run = result.run
    if overwrite and is_main:
        ledger.remove_repeat(results, recipe, run)
    log(f"{trainer.measured_on} accuracy {run.accuracy}; trained for {clock(run.seconds.train)}")
    if run.validated:
        log(
            f"reported: epoch {run.accuracy.best_epoch}, with {max(run.curve['validation']):.2f} % on the validation "
            f"images{' under attack' if recipe.adversary else ''}"
        )
    log(f"weights: {result.weights}")
    return result


@contextlib.contextmanager
def combine_listeners(progress: bool, log_dir: Path | None, *others: Listener | None) -> Iterator[Listener]:
    """All listeners of a run as one; `log_dir` is the run's own folder for TensorBoard."""
    with contextlib.ExitStack() as stack:
        listeners = [listener for listener in others if listener]
        if progress:
            listeners.append(ShowProgress(stack.enter_context(Progress("images", file=sys.stdout))))
        if log_dir is not None:
            board = TensorBoard(log_dir)
            stack.callback(board.close)
            listeners.append(each_epoch(board.write))

        def call_all(trainer: "Trainer") -> None:
            for listener in listeners:
                listener(trainer)

        yield call_all


def is_finished(folder: Path, run: Run) -> bool:
    """Whether the folder holds the weights that a run reports, not those of a repeat that has not ended."""
    weights = folder / reported_file(run)
    return weights.is_file() and not ((folder / CHECKPOINT).is_file() and sha256_of(weights) != run.weights_sha256)


def load_finished(recipe: Recipe, out: Path, results: Path, run: Run) -> Result:
    """The result of a finished run, or of its repeat if the weights in the folder are the repeat's."""
    folder = out / recipe.run_path
    weights = folder / reported_file(run)
    repeat = ledger.find_run(results, recipe, kind=ledger.REPEATS)
    if repeat and repeat.weights_sha256 == sha256_of(weights):
        run = repeat
    recipe = replace(recipe.resolve(), img_size=run.recipe["img_size"], augment=run.recipe["augment"])
    scores = run.curve.get("validation", [None] * run.epochs)
    curve = zip(run.curve["loss"], run.curve["accuracy"], scores, strict=True)
    history = [
        Epoch(epoch + 1, learning_rate(recipe, epoch), loss, accuracy, validation=score)
        for epoch, (loss, accuracy, score) in enumerate(curve)
    ]
    return Result(recipe, load_model(weights), history, run, folder)
