"""What a run shows while it trains: listeners of the trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspcaps.errors import MspcapsError
from mspcaps.files import check_writable
from mspcaps.progress import Progress
from mspcaps.training.device import has_bf16_instructions
from mspcaps.training.ledger import device_name
from mspcaps.training.result import Epoch

if TYPE_CHECKING:
    from mspcaps.training.trainer import Listener, Trainer


def summary(trainer: "Trainer") -> str:
    """What is trained on what, in one line, so that a wrong size is noticed at once."""
    recipe, model, epoch, steps = trainer.recipe, trainer.model, trainer.epoch, trainer.steps_done
    watched = f", {len(trainer.evaluator.data):,} validation" if trainer.watched == "validation" else ""
    shape, params = (model.in_chans, *model.img_size), sum(p.numel() for p in model.parameters())
    faster = recipe.precision is None and has_bf16_instructions(trainer.device)
    resumed_after = f"step {steps} of epoch {epoch + 1}" if steps else f"epoch {epoch}"
    return (
        f"{recipe.dataset}: {trainer.loader.n:,} training{watched} and {len(trainer.test):,} {trainer.measured_on} "
        f"images of {len(trainer.classes)} classes, {' x '.join(map(str, shape))}; {recipe.model}, "
        f"{params:,} parameters; {recipe.epochs} epoch{'s' * (recipe.epochs != 1)} in batches of {recipe.batch_size} "
        f"on {device_name(trainer.device)}{', where precision bf16 may be faster' if faster else ''}"
    ) + (f"; continues after {resumed_after}" if epoch or steps else "")


class ShowProgress:
    """Shows epoch, images per second, time left, loss and accuracy; `named` puts the name of the run first."""

    def __init__(self, progress: Progress, named: bool = False) -> None:
        self.progress, self.named = progress, named

    def __call__(self, trainer: "Trainer") -> None:
        run, recipe, steps = str(trainer.folder), trainer.recipe, trainer.loader.steps
        if not trainer.world.is_main or not (trainer.finished or self.progress.due(run)):
            return  # reading the loss stalls a GPU, so it is read only when it is shown
        between_epochs = trainer.steps_done == 0 and bool(trainer.history)
        loss = trainer.history[-1].loss if between_epochs else trainer.step.loss_sum.item() / max(trainer.steps_done, 1)
        detail = [f"loss {loss:.4f}"]
        if trainer.history:
            row = trainer.history[-1]
            detail.append(f"{trainer.watched} accuracy {row.accuracy:.2f} %")
            if recipe.adversary and row.validation is not None:
                detail.append(f"robust {row.validation:.2f} %")
        name = f"{recipe.run_path.as_posix()}  " if self.named else ""
        label = f"{name}epoch {max(1, trainer.epoch + (not between_epochs))}/{recipe.epochs}"
        done = (trainer.epoch * steps + trainer.steps_done) * recipe.batch_size
        total = done if trainer.finished else recipe.epochs * steps * recipe.batch_size
        self.progress.update(run, done, total, "  ".join(detail), label)


def each_epoch(function: Callable[[Epoch], object]) -> "Listener":
    """A listener that calls a function with the row of every epoch when it ends."""

    def listener(trainer: "Trainer") -> None:
        if trainer.steps_done == 0 and trainer.world.is_main:
            function(trainer.history[-1])

    return listener


class TensorBoard:
    """Writes the loss, learning rate and accuracy of epochs to the folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MspcapsError("--log-dir needs TensorBoard: pip install 'mspcaps[log]'") from error
        check_writable(folder)  # before the run begins
        self.make, self.folder = SummaryWriter, folder
        self.writer: Any = None

    def write(self, row: Epoch) -> None:
        if self.writer is None:
            self.writer = self.make(str(self.folder))
        for name in ("loss", "lr", "accuracy", "validation"):
            if (value := getattr(row, name)) is not None:
                self.writer.add_scalar(name, value, row.epoch)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
