"""The trainer: one for CPU and GPU, for one process and many.

    load the images -> build the model -> for every epoch: steps, evaluation, history, checkpoint -> weights and ledger

A run lives in <out>/<dataset>/<model>/<recipe>-seed<k>/ as checkpoint.safetensors while it goes, best.safetensors (best
test epoch, for comparison with papers that report it) and last.safetensors (what we report).
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from mspcaps.data import CATALOG, ImageSet, provenance
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.health import BlockHealth, as_curves
from mspcaps.files import check_writable, lock_folder, sha256_of
from mspcaps.models import Model, save_weights
from mspcaps.models.transfer import transfer
from mspcaps.training import ledger
from mspcaps.training.checkpoint import CHECKPOINT, load_checkpoint, run_folder, save_checkpoint
from mspcaps.training.distributed import join_world, synchronize_batchnorm
from mspcaps.training.evaluator import Evaluator
from mspcaps.training.recipe import Recipe, differences, measured_on
from mspcaps.training.schedule import learning_rate
from mspcaps.training.setup import (
    build_model,
    check_apart,
    default_form,
    load_images,
    make_plan,
    make_step,
    resolve,
    working_precision,
)
from mspcaps.training.step import Form

# Of runs side by side one at a time compiles, records graphs or draws initial weights: all threads share one sequence
# of random numbers in PyTorch, and its compiler puts that back to where it was.
preparing = threading.Lock()


@dataclass(frozen=True)
class Epoch:
    """One row of a run's history."""

    epoch: int  # 1, 2, ...
    lr: float
    loss: float  # mean over the epoch's steps
    accuracy: float  # percent of the test set, or of what is held out
    health: tuple[BlockHealth, ...] = field(default=(), repr=False)  # of every routing block

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> "Epoch":
        """A row of a checkpoint; old ones know no health."""
        return cls(**row | {"health": tuple(BlockHealth(**block) for block in row.get("health", ()))})


@dataclass(frozen=True)
class Result:
    """A finished run."""

    recipe: Recipe
    model: Model
    history: list[Epoch]
    entry: dict[str, Any]  # of the ledger
    folder: Path

    def __repr__(self) -> str:
        return f"Result({self.folder}: {self.history[-1]})"


Listener = Callable[["Trainer"], None]
FindWeights = Callable[[str], Path]


class Trainer:
    """One run. `run()` starts or resumes it; `listener` is called after every chunk of steps and every epoch."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        form: Form | None = None,
        out: Path = Path("runs"),
        results: Path = Path("results"),
        save_every: float = 30.0,
        listener: Listener = lambda trainer: None,
        side_by_side: int = 1,
        find_weights: FindWeights = lambda file: Path(file).expanduser(),
        say: Callable[[str], None] = print,
        stop: threading.Event | None = None,
        overwrite: bool = False,
    ) -> None:
        self.overwrite = overwrite  # whether the entry of an equal run is replaced, not left as it is
        self.device, self.listener, self.save_every, self.results = device, listener, save_every, Path(results)
        self.stop = stop or threading.Event()  # once set, the run ends after the chunk of steps that it is at
        self.side_by_side = side_by_side  # runs that may share the device: its times are not those of a run alone
        self.world = join_world(device)
        self.autocast = working_precision(device)
        self.say = say if self.world.is_main else lambda line: None
        train, test = load_images(recipe, device, self.say)
        self.recipe = resolve(recipe, train)
        self.classes, self.images = train.classes, (len(train), len(test), train.channels, *train.size)
        self.folder = run_folder(Path(out), self.recipe)
        check_apart(self.recipe, self.folder, "out")
        check_apart(self.recipe, ledger.entry_path(self.results, self.recipe), "results")
        with preparing:
            self.model = build_model(self.recipe, train)
        self.initial = self.begin_from(find_weights)
        self.model.to(device).train()
        if self.world.size > 1:
            synchronize_batchnorm(self.model)
        self.plan = make_plan(self.recipe, train, device, self.world)
        images = self.plan.steps * self.recipe.batch_size * self.recipe.epochs
        self.form: Form = form or default_form(device, self.world, images)
        if self.form not in get_args(Form):
            raise MspcapsError(f"there is no form {form!r}: the forms are {', '.join(get_args(Form))}")
        if self.form == "captured" and device.type != "cuda":
            raise MspcapsError("the captured form is for GPUs only: use eager or compiled")
        self.step = make_step(self.model, self.plan, self.recipe.weight_decay, self.form, self.world)
        self.optimizer = self.step.optimizer
        self.evaluator = Evaluator(self.model, test, device, self.form, self.autocast)
        self.epoch, self.steps_done, self.seconds = 0, 0, 0.0
        self.history: list[Epoch] = []
        self.best: dict[str, Tensor] = {}
        self.best_is_new = False

    def begin_from(self, find_weights: FindWeights) -> dict[str, str] | None:
        """Take over what fits of the recipe's initial weights, unless a checkpoint is there: that knows more.

        What comes with the package is found by `weights`, which stands to our right: hence `find_weights`.
        """
        if not self.recipe.init or (self.folder / CHECKPOINT).is_file():
            return None
        done = transfer(self.model, find_weights(self.recipe.init), self.classes, self.recipe.init)
        self.say(str(done))
        return {"sha256": done.sha256, "transfer": str(done)}

    def run(self, deadline: float = math.inf) -> Result | None:
        """Train to the end. At the first end of an epoch past the deadline (time.monotonic), and when told to stop, it
        saves a checkpoint and returns None."""
        if ledger.is_in_ledger(self.results, self.recipe) and not self.overwrite:
            before = ledger.last_accuracy(self.results, self.recipe)
            self.results /= ledger.REPEATS
            self.say(
                f"the ledger already has this run, with {before:.2f} % after the last epoch: this one goes to "
                f"{self.results}"
            )
        check_writable(ledger.entry_path(self.results, self.recipe).parent, "cannot write the ledger to")
        busy = f"another process is training in {self.folder}: wait for it, or choose another folder with --out"
        with lock_folder(self.folder, busy) if self.world.is_main else contextlib.nullcontext():
            self.resume()
            self.say(self.summary())
            try:
                return self.train(deadline)
            except torch._dynamo.exc.BackendCompilerFailed:
                if self.stop.is_set():  # Ctrl-C in a terminal reaches the C++ compiler as well
                    return None
                raise

    def summary(self) -> str:
        """What is trained on what, in one line: people are to see at once that sizes are not what they thought."""
        train, test, *shape = self.images
        params = sum(p.numel() for p in self.model.parameters())
        since = f"step {self.steps_done} of epoch {self.epoch + 1}" if self.steps_done else f"epoch {self.epoch}"
        return (
            f"{self.recipe.dataset}: {train:,} training and {test:,} {measured_on(self.recipe.held_out)} images of "
            f"{len(self.classes)} classes, {' x '.join(map(str, shape))}; {self.recipe.model}, {params:,} parameters; "
            f"{self.recipe.epochs} epochs in batches of {self.recipe.batch_size} on {ledger.device_name(self.device)}"
        ) + (f"; continues after {since}" if self.epoch or self.steps_done else "")

    def train(self, deadline: float) -> Result | None:
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        if not self.world.all_equal(self.epoch, self.steps_done):
            raise MspcapsError(
                f"the processes resume from different checkpoints: all of them must see the same {self.folder}"
            )
        if self.form != "eager":
            self.say("compiling, which takes up to a minute the first time")
        if self.form == "captured":
            with preparing:
                self.plan.begin(self.epoch)
                self.plan.advance()
                self.step.capture()
                if isinstance(self.evaluator.data, ImageSet):
                    self.evaluator.capture()
                else:
                    self.evaluator.add_up()  # compiles
        self.started = saved = time.monotonic()
        while self.epoch < self.recipe.epochs:
            self.optimizer.lr.fill_(learning_rate(self.recipe, self.epoch))
            self.plan.begin(self.epoch, self.steps_done)
            while self.steps_done < self.plan.steps:
                self.steps_done += self.step()
                if self.device.type == "cpu":  # elsewhere reading the loss would make the device wait for us
                    self.check_finite()
                self.listener(self)
                if self.steps_done == self.plan.steps:
                    break
                stop, due = self.world.any([self.stop.is_set(), time.monotonic() - saved >= self.save_every])
                if stop or due:
                    self.save()
                    saved = time.monotonic()
                if stop:
                    return None
            self.close_epoch()
            late = time.monotonic() > deadline or self.stop.is_set()
            ends, due = self.world.any([late, time.monotonic() - saved >= self.save_every])
            if ends or due:
                self.save()
                saved = time.monotonic()
            if ends and self.epoch < self.recipe.epochs:
                return None
        return self.finish()

    def close_epoch(self) -> None:
        """Evaluate, extend the history, keep the best weights, go to the next epoch."""
        self.world.average([self.step.loss_sum])
        self.check_finite()
        loss = self.step.loss_sum.item() / self.plan.steps
        accuracy, health = self.evaluator.accuracy(), self.evaluator.health()
        self.warn_of_collapse(health)
        if not self.history or accuracy > max(row.accuracy for row in self.history):
            self.best, self.best_is_new = {name: t.clone() for name, t in self.weights().items()}, True
        self.history.append(Epoch(self.epoch + 1, learning_rate(self.recipe, self.epoch), loss, accuracy, health))
        self.step.loss_sum.zero_()
        self.epoch, self.steps_done = self.epoch + 1, 0
        self.listener(self)

    def warn_of_collapse(self, health: Sequence[BlockHealth]) -> None:
        """One sentence per block, the first time."""
        before = {block.name for row in self.history for block in row.health if block.collapsed}
        for block in health:
            if block.collapsed and block.name not in before:
                self.say(
                    f"the routing block {block.name} has collapsed in epoch {self.epoch + 1}: {block.why()}; "
                    "few of its capsules decide what it puts out"
                )

    def weights(self) -> dict[str, Tensor]:
        """The model's state with the fp32 master weights in place of the working copies."""
        kept = self.optimizer.tensors()
        masters = {name.removeprefix("master."): kept[name] for name in kept if name.startswith("master.")}
        return self.model.state_dict() | masters

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        buffers = {f"buffer.{name}": buffer for name, buffer in self.model.named_buffers()}
        # they may be of initial weights, which a run that goes on does not read again
        frozen = {f"frozen.{name}": p for name, p in self.model.named_parameters() if not p.requires_grad}
        return self.optimizer.tensors() | buffers | frozen | {"loss_sum": self.step.loss_sum}

    def clock(self) -> float:
        """Seconds of training, over all sittings."""
        return self.seconds + time.monotonic() - self.started

    def save(self) -> None:
        """A checkpoint, by the process that leads; all of them come here at the same step."""
        self.check_finite()  # the last good checkpoint is worth more
        tensors = self.checkpoint_tensors() | {"loss_sum": self.step.loss_sum.clone()}
        self.world.average([tensors["loss_sum"]])  # each process will go on from it
        if self.world.is_main:
            self.write(tensors)
        self.world.barrier()  # nobody looks for a checkpoint that is not there yet

    def write(self, tensors: dict[str, Tensor]) -> None:
        if self.best_is_new:  # written first: a checkpoint never speaks of a best file that is not there
            self.save_weights("best", self.best)
            self.best_is_new = False
        progress = {
            "recipe": self.recipe.to_dict(), "epoch": self.epoch, "step": self.steps_done, "seconds": self.clock(),
            "history": [asdict(row) for row in self.history], "initial": self.initial, "images": self.plan.n,
        }  # fmt: skip
        save_checkpoint(self.folder / CHECKPOINT, tensors, progress)

    def save_weights(self, which: str, tensors: dict[str, Tensor]) -> Path:
        path = self.folder / f"{which}.safetensors"
        save_weights(path, self.model, tensors, classes=self.classes, recipe=self.recipe.to_dict())
        return path

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one of this recipe."""
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return
        with torch.no_grad():
            progress = load_checkpoint(path, self.checkpoint_tensors())
        differing = differences(self.recipe, progress["recipe"])
        if differing:
            raise MspcapsError(
                f"{path} was written with another {differing[0]}; remove it to start over, or give the run another name"
            )
        if progress.get("images", self.plan.n) != self.plan.n:
            raise MspcapsError(
                f"{path} was written when there were {progress['images']:,} training images, but now there are "
                f"{self.plan.n:,}; remove it to start over"
            )
        self.optimizer.refresh()
        self.epoch, self.steps_done, self.seconds = progress["epoch"], progress["step"], progress["seconds"]
        self.history = [Epoch.from_dict(row) for row in progress["history"]]
        self.initial = progress.get("initial")
        self.step.chunk = math.gcd(self.step.chunk, self.steps_done)  # another form may have stopped between two chunks

    def check_finite(self) -> None:
        """Stop a run whose loss is lost, and say where the first value went missing."""
        if math.isfinite(self.step.loss_sum.item()):
            return
        where = (
            f"the loss is not a finite number in epoch {self.epoch + 1}, by step {self.steps_done} of {self.plan.steps}"
        )
        lost = [name for name, tensor in self.weights().items() if not torch.isfinite(tensor).all()]
        if lost:
            raise MspcapsError(
                f"{where}: {lost[0]} of the model is no longer finite; an lr below {self.recipe.lr} may help"
            )
        raise MspcapsError(
            f"{where}: all weights are finite, so it arose in the forward pass; an lr below {self.recipe.lr} may help"
        )

    def finish(self) -> Result:
        """Write weights and ledger entry, remove the checkpoint."""
        seconds = self.clock()
        entry: dict[str, Any] = {}
        if self.world.is_main:
            if self.best_is_new:
                self.save_weights("best", self.best)
            last = self.save_weights("last", self.weights())
            entry = self.entry(seconds, sha256_of(last))
            ledger.write_entry(self.results, self.recipe, entry)
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.world.barrier()
        self.load_masters()
        self.model.metadata = {"classes": list(self.classes), "recipe": self.recipe.to_dict()}
        return Result(self.recipe, self.model.eval(), self.history, entry, self.folder)

    def load_masters(self) -> None:
        """Give the model its own fp32 parameters back."""
        weights = {name: tensor.clone() for name, tensor in self.weights().items()}
        for name, p in self.model.named_parameters():
            p.data = weights[name]

    def entry(self, seconds: float, sha256: str) -> dict[str, Any]:
        best, data = max(self.history, key=lambda row: row.accuracy), self.recipe.data
        health = as_curves([row.health for row in self.history])
        return {
            "model": self.recipe.model,
            "params": sum(p.numel() for p in self.model.parameters()),
            "dataset": self.recipe.dataset,
            "provenance": provenance(data) if data in CATALOG else "the user's own data set",
            "recipe": self.recipe.to_dict(),
            "initial": self.initial,
            "images": self.plan.n,
            "seed": self.recipe.seed,
            "epochs": self.recipe.epochs,
            "accuracy": {"last": self.history[-1].accuracy, "best": best.accuracy, "best_epoch": best.epoch},
            "curve": {
                "loss": [float(f"{row.loss:.6g}") for row in self.history],
                "accuracy": [round(row.accuracy, 4) for row in self.history],
            }
            | ({"health": health} if health else {}),
            "measured_on": f"{self.recipe.held_out:,} held-out training images" if self.recipe.held_out else "test",
            "seconds": {
                "train": round(seconds, 2),
                "per_epoch": round(seconds / self.recipe.epochs, 4),
                "side_by_side": self.side_by_side,
            },
            "device": ledger.device_name(self.device),
            "processes": self.world.size,
            "precision": "bf16" if self.autocast else "fp32",
            "form": self.form,
            "software": ledger.software(),
            "commit": ledger.git_commit(),
            "weights_sha256": sha256,
        }
