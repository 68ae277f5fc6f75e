"""What a run leaves behind: a row for every epoch, its weights, its entry in the ledger."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mspcaps.data import FolderImages, ImageSet
from mspcaps.evaluation.health import BlockHealth
from mspcaps.models import Model
from mspcaps.pages.notebook import small_table, sparkline
from mspcaps.training.ledger import Run
from mspcaps.training.recipe import Recipe

MAX_SHOWN = 10  # epochs in a notebook
LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass(frozen=True)
class Epoch:
    """One row of a run's history."""

    epoch: int  # 1, 2, ...
    lr: float
    loss: float  # mean over the epoch's steps
    accuracy: float  # in percent, on the validation images if there are any, else on those that the run is measured on
    health: tuple[BlockHealth, ...] = field(default=(), repr=False)  # of every routing block
    validation: float | None = None  # accuracy on the validation images, under attack if there is an adversary

    @property
    def score(self) -> float:
        """The figure by which the best epoch is chosen."""
        return self.accuracy if self.validation is None else self.validation

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> "Epoch":
        """A row from a checkpoint; old ones have no health."""
        return cls(**row | {"health": tuple(BlockHealth(**block) for block in row.get("health", ()))})


@dataclass(frozen=True)
class Result:
    """A finished run."""

    recipe: Recipe
    model: Model
    history: list[Epoch]
    run: Run  # its entry in the ledger
    folder: Path
    images: ImageSet | FolderImages | None = field(default=None, repr=False)  # measured on; None if done before

    @property
    def weights(self) -> Path:
        """The weights file that we report."""
        return self.folder / reported_file(self.run)

    def _repr_html_(self) -> str:
        """For notebooks: the last epochs, and the curves of loss and accuracy."""
        rows = [
            (str(row.epoch), f"{row.lr:.2g}", f"{row.loss:.4f}", f"{row.accuracy:.2f} %")
            for row in self.history[-MAX_SHOWN:]
        ]
        curves = "".join(
            f"<div>{name} {sparkline([getattr(row, name) for row in self.history], name)}</div>"
            for name in ("loss", "accuracy")
            if len(self.history) > 1  # one epoch makes no curve
        )
        before = f"after {len(self.history) - MAX_SHOWN:,} earlier epochs; " if len(self.history) > MAX_SHOWN else ""
        title = f"{self.recipe.model} on {self.recipe.dataset}, {self.recipe.run_name}"
        heads, note = ("epoch", "learning rate", "loss", "accuracy"), f"{before}weights: {self.weights}"
        return small_table(heads, rows, note, title, right=range(4)) + curves

    def __repr__(self) -> str:
        return f"Result({self.folder}: {self.history[-1]})"


def reported_file(run: Run) -> str:
    """The weights that we report: those of the last epoch, or of the best one if validation images chose it."""
    return BEST if run.validated else LAST
