"""The trainer: one for CPU and GPU, for one process and many.

    load the images -> build the model -> for every epoch: steps, evaluation, history, checkpoint -> weights and ledger

A run lives in <out>/<dataset>/<model>/<recipe>-seed<k>/: checkpoint.safetensors until it is done, best.safetensors (the
best test epoch, for comparison with papers that report it) and last.safetensors (what we report). With validation
images the best epoch is the best on those, we report that one, and the test images are used once, at the end.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mspcaps.data import CATALOG, fingerprint, provenance
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.health import BlockHealth, as_curves
from mspcaps.files import check_writable, lock_folder, sha256_of
from mspcaps.models import Model, create_model, save_weights
from mspcaps.models.shipped import weights_path
from mspcaps.models.transfer import transfer
from mspcaps.training import ledger
from mspcaps.training.checkpoint import CHECKPOINT, check_same_run, load_tensors, read_checkpoint, save_checkpoint
from mspcaps.training.device import Engine, choose_engine
from mspcaps.training.distributed import join_world, synchronize_batchnorm
from mspcaps.training.evaluator import Evaluator, make_robust_evaluator
from mspcaps.training.images import Images, check_outside, load_images, normalization
from mspcaps.training.ledger import Accuracy, Run, Seconds
from mspcaps.training.loader import make_loader
from mspcaps.training.monitor import summary
from mspcaps.training.optimizers import learning_rate
from mspcaps.training.recipe import Recipe, measured_on
from mspcaps.training.result import BEST, LAST, Epoch, Result, reported_file
from mspcaps.training.step import Step

# Only one of several concurrent runs may compile, record graphs or draw initial weights at a time: PyTorch has one
# random state for all threads, and its compiler resets that state to what it was before.
preparation_lock = threading.Lock()

SAVE_EVERY = 30.0  # seconds between checkpoints
Log = Callable[[str], None]
Listener = Callable[["Trainer"], None]


def build_model(recipe: Recipe, train: Images) -> Model:
    """The model with initial weights that depend on the seed alone; the global random state is left unchanged."""
    mean, std = normalization(recipe, train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return create_model(
            recipe.model, num_classes=len(train.classes), in_chans=train.channels, img_size=train.size, mean=mean,
            std=std, **recipe.options,
        )  # fmt: skip


class Trainer:
    """One run. `run()` starts or resumes it; `listener` is called after every few steps and every epoch."""

    def __init__(
        self, recipe: Recipe, device: torch.device, engine: Engine | None = None, out: Path = Path("runs"),
        results: Path = Path("results"), save_every: float = SAVE_EVERY, listener: Listener = lambda trainer: None,
        side_by_side: int = 1, log: Log = print, stop: threading.Event | None = None, repeats: Run | None = None,
    ) -> None:  # fmt: skip
        if not save_every >= 0:
            raise MspcapsError(f"save_every is {save_every}, but must be a number of seconds, 0 or more")
        self.device, self.listener, self.save_every = device, listener, save_every
        self.stop = stop or threading.Event()  # once set, the run stops after the current steps
        self.side_by_side = side_by_side  # how many runs may share the device: each is then slower than a run alone
        self.world = join_world(device)
        self.log = log if self.world.is_main else lambda line: None
        if recipe.adversary and self.world.size > 1 and not recipe.sync_batchnorm:
            # Attacks read the running statistics, which would be each process's own until the next checkpoint.
            raise MspcapsError("sync_batchnorm is false, but several processes with an adversary need it true")
        self.repeats = repeats  # the run in the ledger that this one repeats
        self.entry_path = ledger.entry_path(results, recipe, ledger.REPEATS if repeats else ledger.RUNS)
        self.entry_existed = self.entry_path.is_file()
        train, validation, self.test = load_images(recipe, device, self.log, self.world.size)
        sums = {"data_sha256": fingerprint(recipe.data), "teacher_sha256": ledger.checksum(recipe.teacher)}
        self.inputs: dict[str, Any] = {"images": len(train), **sums}  # may have changed when a run is resumed
        self.recipe, self.measured_on = recipe.resolve(train.size), measured_on(vars(recipe))
        self.watched = "validation" if validation is not None else self.measured_on  # evaluated after every epoch
        self.classes = train.classes
        self.folder = out / self.recipe.run_path
        check_outside(self.recipe, self.folder, "out")
        check_outside(self.recipe, self.entry_path, "results")
        with preparation_lock:
            self.model = build_model(self.recipe, train)
        self.initial = self.load_initial_weights()
        self.model.to(device).train()
        if self.world.size > 1 and self.recipe.sync_batchnorm:
            synchronize_batchnorm(self.model, self.world)
        self.loader = make_loader(self.recipe, train, device, self.world)
        images = self.loader.steps * self.recipe.batch_size * self.recipe.epochs
        self.engine = choose_engine(engine, device, self.world.size, images, self.model)
        self.step = Step(self.model, self.loader, self.recipe, self.engine, self.world)
        self.optimizer = self.step.optimizer
        watched = self.test if validation is None else validation
        self.evaluator = Evaluator(self.step.evaluated, watched, device, self.engine, self.step.autocast)
        self.robust_evaluator = make_robust_evaluator(self.step, validation, self.recipe, device, self.engine)
        self.epoch, self.steps_done, self.seconds = 0, 0, 0.0
        self.history: list[Epoch] = []
        self.best: dict[str, Tensor] = {}  # the best epoch's weights, until they are written

    def load_initial_weights(self) -> dict[str, str] | None:
        """Load the recipe's initial weights where they fit, unless there is a checkpoint, which supersedes them."""
        if not self.recipe.init or (self.folder / CHECKPOINT).is_file():
            return None
        report = transfer(self.model, weights_path(self.recipe.init), self.classes, self.recipe.init)
        self.log(str(report))
        return {"sha256": report.sha256, "transfer": str(report)}

    def run(self, deadline: float = math.inf) -> Result | None:
        """Train to the end. Once `stop` is set, or an epoch ends after the deadline (by time.monotonic), save a
        checkpoint and return None."""
        with self.prepared():
            self.started = self.last_save = time.monotonic()
            while not self.finished:
                self.optimizer.lr.fill_(learning_rate(self.recipe, self.epoch))
                self.loader.begin(self.epoch, self.steps_done)
                while self.steps_done < self.loader.steps:
                    try:
                        self.steps_done += self.step()
                    except torch._dynamo.exc.BackendCompilerFailed:
                        if self.stop.is_set():  # Ctrl-C in a terminal reaches the C++ compiler as well
                            return None
                        raise
                    if self.device.type == "cpu":  # on a GPU, reading the loss would stall the device
                        self.check_finite()
                    self.listener(self)
                    if self.steps_done < self.loader.steps and self.pause(self.stop.is_set()):
                        return None
                self.close_epoch()
                if self.pause(self.stop.is_set() or time.monotonic() > deadline) and not self.finished:
                    return None
            if self.epoch < self.recipe.epochs:
                self.log(f"stopped after epoch {self.epoch}: no improvement in {self.recipe.patience} epochs")
            return self.finish()

    def pause(self, stop: bool) -> bool:
        """Save a checkpoint if one is due or any process is to stop -> whether to stop."""
        stop, due = self.world.any([stop, time.monotonic() - self.last_save >= self.save_every])
        if stop or due:
            self.save()
            self.last_save = time.monotonic()
        return stop

    @property
    def best_epoch(self) -> Epoch:
        """The epoch with the best score, the first of several."""
        return max(self.history, key=lambda row: row.score)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train. It depends on the history alone, so a resumed run ends at the same
        epoch."""
        patience = self.recipe.patience or self.recipe.epochs
        return self.epoch == self.recipe.epochs or (
            bool(self.history) and self.epoch - self.best_epoch.epoch >= patience
        )

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Lock the run's folder, load the checkpoint and compile everything."""
        check_writable(self.entry_path.parent, "cannot write the ledger to")
        if self.repeats:
            self.log(
                f"the ledger already has this run, with {self.repeats.accuracy.last:.2f} % after the last epoch: this "
                f"repeat goes to {self.entry_path.parents[2]}"
            )
        busy = f"another process is training in {self.folder}: wait for it, or choose another folder with --out"
        with lock_folder(self.folder, busy) if self.world.is_main else contextlib.nullcontext():
            if self.world.is_main and self.entry_path.is_file() and not self.entry_existed:
                raise MspcapsError(f"another process has just finished the run in {self.folder}: repeat the command")
            self.resume()
            self.log(summary(self))
            if not self.world.all_equal(self.epoch, self.steps_done):
                raise MspcapsError(
                    f"the processes resume from different checkpoints: they must all see the same {self.folder}"
                )
            if self.device.type == "cuda":
                torch.backends.cudnn.benchmark = True
            if self.engine != "eager":
                self.log("compiling, which takes up to a minute the first time")
            if self.engine == "cudagraph":
                with preparation_lock:
                    self.loader.begin(self.epoch)
                    self.loader.advance()
                    self.step.capture()
                    self.evaluator.capture()
                    if self.robust_evaluator:
                        self.robust_evaluator.capture()
            try:
                yield
            finally:
                self.step.release()

    def how_to_resume(self) -> str:
        if not (self.folder / CHECKPOINT).is_file():
            return "stopped before the first checkpoint: nothing was saved"
        return f"stopped; the same command continues from the checkpoint in {self.folder}"

    def close_epoch(self) -> None:
        """Evaluate, extend the history, keep the best weights, move on to the next epoch."""
        self.share_statistics()
        (mean_loss,) = self.world.all_reduce_mean([self.step.loss_sum])
        self.step.loss_sum.copy_(mean_loss)
        self.check_finite()
        loss = self.step.loss_sum.item() / self.loader.steps
        accuracy, health = self.evaluator.accuracy(), self.evaluator.health()
        self.warn_of_collapse(health)
        robust = self.robust_evaluator.accuracy() if self.robust_evaluator else accuracy
        accuracy, robust = self.world.broadcast_numbers(accuracy, robust)
        validation = robust if self.watched == "validation" else None
        row = Epoch(self.epoch + 1, learning_rate(self.recipe, self.epoch), loss, accuracy, health, validation)
        if not self.history or row.score > self.best_epoch.score:
            self.best = {name: tensor.clone() for name, tensor in self.weights().items()}
        self.history.append(row)
        self.step.loss_sum.zero_()
        self.epoch, self.steps_done = self.epoch + 1, 0
        self.listener(self)

    def share_statistics(self) -> None:
        """Give every process the main one's BatchNorm statistics if they are not synchronised, as PyTorch's
        DistributedDataParallel does. Only evaluation, checkpoints and attacks read them."""
        if not self.recipe.sync_batchnorm:
            self.world.broadcast(self.step.statistics())

    def warn_of_collapse(self, health: Sequence[BlockHealth]) -> None:
        """Log one sentence per block, the first time it collapses."""
        before = {block.name for row in self.history for block in row.health if block.collapsed}
        for block in health:
            if block.collapsed and block.name not in before:
                self.log(
                    f"the routing block {block.name} collapsed in epoch {self.epoch + 1}: {block.why()}; few of its "
                    "capsules decide its output"
                )

    def weights(self) -> dict[str, Tensor]:
        """The model's state with the fp32 master weights, or their average, instead of the working copies."""
        return self.model.state_dict() | self.optimizer.masters() | self.step.averages

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, and frozen parameters too: they may come from initial weights, which a
        resumed run does not read again."""
        state, trained = self.model.state_dict(), self.optimizer.masters()
        params = {name for name, _ in self.model.named_parameters()}
        kept = {
            f"{'frozen' if name in params else 'buffer'}.{name}": state[name] for name in state if name not in trained
        }
        kept |= {f"average.{name}": tensor for name, tensor in self.step.averages.items()}
        return self.optimizer.tensors() | kept | {"loss_sum": self.step.loss_sum}

    def clock(self) -> float:
        """Seconds of training, including those before the run was resumed."""
        return self.seconds + time.monotonic() - self.started

    def save(self) -> None:
        """Save a checkpoint. All processes get here at the same step; the main one writes the file."""
        self.check_finite()  # never overwrite the last good checkpoint with a bad one
        self.share_statistics()
        (mean_loss,) = self.world.all_reduce_mean([self.step.loss_sum])  # every process will resume from it
        tensors = self.checkpoint_tensors() | {"loss_sum": mean_loss}
        if self.world.is_main:
            self.write_best()  # first, so that a checkpoint never refers to a missing best file
            progress = {
                "recipe": self.recipe.to_dict(), "epoch": self.epoch, "step": self.steps_done, "seconds": self.clock(),
                "history": [asdict(row) for row in self.history], "initial": self.initial, **self.inputs,
            }  # fmt: skip
            save_checkpoint(self.folder / CHECKPOINT, tensors, progress)
        self.world.barrier()  # no process may look for the checkpoint before it is written

    def write_best(self) -> None:
        if self.best:
            self.save_weights(BEST, self.best)
            self.best = {}

    def save_weights(self, file: str, tensors: dict[str, Tensor]) -> None:
        save_weights(self.folder / file, self.model, tensors, classes=self.classes, recipe=self.recipe.to_dict())

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one; refuse one of another run."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        progress, stored = read_checkpoint(path)
        check_same_run(path, progress, self.recipe, self.inputs)
        with torch.no_grad():
            load_tensors(path, stored, self.checkpoint_tensors())
        self.optimizer.refresh()
        self.epoch, self.steps_done, self.seconds = progress["epoch"], progress["step"], progress["seconds"]
        self.history = [Epoch.from_dict(row) for row in progress["history"]]
        self.initial = progress.get("initial")
        # the run may have been stopped, with another engine, between two replays of this one
        self.step.steps_per_replay = math.gcd(self.step.steps_per_replay, self.steps_done)

    def check_finite(self) -> None:
        """Stop a run whose loss is NaN or infinite, and name the first weight that is."""
        if math.isfinite(self.step.loss_sum.item()):
            return
        bad = [name for name, tensor in self.weights().items() if not torch.isfinite(tensor).all()]
        where = f"{bad[0]} of the model is no longer finite" if bad else (
            "all weights are finite, so it arose in the forward pass"
        )  # fmt: skip
        raise MspcapsError(
            f"the loss is not a finite number in epoch {self.epoch + 1}, by step {self.steps_done} of "
            f"{self.loader.steps}: {where}; an lr below {self.recipe.lr} may help"
        )

    def finish(self) -> Result:
        """Write the weights and the ledger entry, remove the checkpoint."""
        if self.world.is_main:
            self.write_best()
            self.save_weights(LAST, self.weights())
        self.world.barrier()
        run = self.entry(self.measure())
        if self.world.is_main:
            run = replace(run, weights_sha256=sha256_of(self.folder / reported_file(run)))
            ledger.write_run(self.entry_path, run)
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.world.barrier()
        self.model.metadata = {"classes": list(self.classes), "recipe": self.recipe.to_dict()}
        return Result(self.recipe, self.model.eval(), self.history, run, self.folder, self.test)

    def measure(self) -> Accuracy:
        """Accuracy after the last and after the best epoch; with validation images, this is the only use of the test
        images. Leaves the weights that we report in the model."""
        best = self.best_epoch
        if self.watched == "validation":
            # Read from the files: the best epoch may precede a resume, and every process needs the same weights.
            evaluator, accuracy = Evaluator(self.model, self.test, self.device, "eager", self.step.autocast), {}
            for file in (LAST, BEST):
                self.install(load_file(self.folder / file, str(self.device)))
                accuracy[file] = evaluator.accuracy()
            return Accuracy(accuracy[LAST], accuracy[BEST], best.epoch, self.watched)
        self.install(self.weights())
        return Accuracy(self.history[-1].accuracy, best.accuracy, best.epoch, self.watched)

    def install(self, weights: dict[str, Tensor]) -> None:
        """Give the model fp32 parameters of its own instead of views of the optimizer's working copies."""
        for name, p in self.model.named_parameters():
            p.data = weights[name].clone()
        for name, buffer in self.model.named_buffers():
            if name in weights:
                buffer.copy_(weights[name])

    def entry(self, accuracy: Accuracy) -> Run:
        """The entry for the ledger, except for the checksum of the weights."""
        recipe, seconds = self.recipe, self.clock()
        health = as_curves([row.health for row in self.history])
        curve: dict[str, Any] = {
            "loss": [float(f"{row.loss:.6g}") for row in self.history],
            "accuracy": [round(row.accuracy, 4) for row in self.history],
            **({"health": health} if health else {}),
            **({"validation": [round(row.score, 4) for row in self.history]} if self.watched == "validation" else {}),
        }
        return Run(
            model=recipe.model,
            options=recipe.options,
            params=sum(p.numel() for p in self.model.parameters()),
            dataset=recipe.dataset,
            provenance=provenance(recipe.data) if recipe.data in CATALOG else "Images of your own.",
            recipe=recipe.to_dict(),
            initial=self.initial,
            **self.inputs,
            seed=recipe.seed,
            epochs=self.epoch,
            accuracy=accuracy,
            curve=curve,
            measured_on=ledger.measured_images(recipe),
            watched=self.watched,
            seconds=Seconds(round(seconds, 2), round(seconds / self.epoch, 4), self.side_by_side),
            device=ledger.device_name(self.device),
            processes=self.world.size,
            precision="bf16" if self.step.autocast else "fp32",
            engine=self.engine,
            software=ledger.software(),
            commit=ledger.git_commit(),
        )
