"""A run records what happened: losses, best weights and time, also when it is interrupted."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_trainer import CPU, equal_files, recipe_for

from mspcaps.capsules import margin_loss
from mspcaps.data import Augmentation, load_dataset
from mspcaps.errors import MspcapsError
from mspcaps.training import Recipe, Trainer, train
from mspcaps.training.checkpoint import CHECKPOINT, load_tensors, read_checkpoint, save_checkpoint
from mspcaps.training.ledger import Accuracy


def quick(data: Path, **changes: object) -> Recipe:
    return recipe_for(data, **{"model": "mspcaps_t_scale16", "batch_size": 48} | changes)


def test_the_loss_of_an_epoch_is_the_mean_of_its_batches(tiny_npz: Path, tmp_path: Path) -> None:
    """At a rate of zero the weights stay, so every batch can be recomputed."""
    recipe = quick(tiny_npz, batch_size=32, epochs=1, lr=1e-30, min_lr=0.0, weight_decay=0.0, augment=Augmentation())
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    trainer.loader.begin(0)
    order, data = trainer.loader.order.clone(), load_dataset(str(tiny_npz), "train")
    assert sorted(order.flatten().tolist()) == list(range(96))
    with torch.no_grad():
        by_hand = [margin_loss(trainer.model(data.images[i].float() / 255), data.labels[i]).item() for i in order]
    result = trainer.run()
    assert result is not None and result.history[0].loss == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    assert result.run.curve["loss"] == pytest.approx([sum(by_hand) / 3], rel=1e-5)


@pytest.mark.parametrize("stored", [{"a": torch.ones(3)}, {"a": torch.ones(1)}, {"b": torch.ones(2, 3)}, {}])
def test_a_checkpoint_with_other_tensors_is_refused(stored: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Even if a shape could be broadcast to the model's."""
    own = {"a": torch.zeros(2, 3)}
    save_checkpoint(path := tmp_path / CHECKPOINT, stored, {"epoch": 1})
    with pytest.raises(MspcapsError) as refusal:
        load_tensors(path, read_checkpoint(path)[1], own)
    assert str(refusal.value) == f"{path} belongs to another model; remove it to start the run over"
    assert not own["a"].any(), "nothing was copied"


def test_of_equally_good_epochs_the_first_is_kept(tiny_npz: Path, tmp_path: Path) -> None:
    after: list[dict[str, torch.Tensor]] = []

    def listener(trainer: Trainer) -> None:
        if trainer.steps_done == 0:
            after.append({name: tensor.clone() for name, tensor in trainer.weights().items()})

    trainer = Trainer(quick(tiny_npz, epochs=4), CPU, out=tmp_path, results=tmp_path, listener=listener)
    trainer.evaluator.accuracy = iter([50.0, 75.0, 75.0, 70.0]).__next__  # type: ignore[method-assign]
    result = trainer.run()
    assert result is not None and result.run.accuracy == Accuracy(last=70.0, best=75.0, best_epoch=2)
    best = load_file(result.folder / "best.safetensors")
    equal = [all(torch.equal(best[name], weights[name]) for name in best) for weights in after]
    assert equal == [False, True, False, False]


def test_the_time_before_a_resume_counts(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = quick(tiny_npz, epochs=2)
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    assert trainer.run(deadline=0.0) is None
    progress, tensors = read_checkpoint(path := trainer.folder / CHECKPOINT)
    assert 0 < progress["seconds"] < 100
    save_checkpoint(path, tensors, progress | {"seconds": 1000.0})
    seconds = train(recipe, device="cpu", out=tmp_path, results=tmp_path).run.seconds
    assert 1000 < seconds.train < 1100 and seconds.per_epoch == pytest.approx(seconds.train / 2, abs=0.01)


def test_a_run_in_bf16_resumes_bit_for_bit(tiny_npz: Path, tmp_path: Path) -> None:
    """The working copies of the weights are not in the checkpoint: they are made again from the masters."""
    recipe = quick(tiny_npz, epochs=2, warmup_epochs=0, precision="bf16")
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    assert Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b").run(deadline=0.0) is None
    resumed = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    assert resumed.run.precision == "bf16" and resumed.run.curve == whole.run.curve
    assert equal_files(whole.folder / "last.safetensors", resumed.folder / "last.safetensors")


def test_a_nan_loss_does_not_replace_the_last_good_checkpoint(tiny_npz: Path, tmp_path: Path) -> None:
    """On a GPU the loss is not read between checkpoints."""
    trainer = Trainer(quick(tiny_npz), CPU, out=tmp_path, results=tmp_path)
    assert trainer.run(deadline=0.0) is None
    kept = (trainer.folder / CHECKPOINT).read_bytes()
    trainer.step.loss_sum.fill_(float("nan"))
    with pytest.raises(MspcapsError, match="all weights are finite, so it arose in the forward pass"):
        trainer.save()
    assert (trainer.folder / CHECKPOINT).read_bytes() == kept


def test_every_step_is_taken_at_the_rate_of_its_epoch(tiny_npz: Path, tmp_path: Path) -> None:
    """Half the rate, the rate, and halfway from it to the minimum."""
    recipe = quick(tiny_npz, epochs=3, warmup_epochs=1, warmup_start=0.5, lr=2e-3, min_lr=1e-3)
    rates: list[float] = []

    def listener(trainer: Trainer) -> None:
        if trainer.steps_done:
            rates.append(float(trainer.optimizer.lr))

    result = Trainer(recipe, CPU, out=tmp_path, results=tmp_path, listener=listener).run()
    assert rates == pytest.approx([1e-3, 1e-3, 2e-3, 2e-3, 1.5e-3, 1.5e-3])
    assert result is not None and [row.lr for row in result.history] == pytest.approx(rates[::2])


def test_a_run_that_is_done_at_its_deadline_is_finished(tiny_npz: Path, tmp_path: Path) -> None:
    result = Trainer(quick(tiny_npz, epochs=1), CPU, out=tmp_path, results=tmp_path).run(deadline=0.0)
    assert result is not None and (result.folder / "last.safetensors").is_file()
    assert not (result.folder / CHECKPOINT).exists()


def test_the_best_weights_from_before_a_resume_are_kept(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = quick(tiny_npz, epochs=2)
    first = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    first.evaluator.accuracy = lambda: 75.0  # type: ignore[method-assign]
    assert first.run(deadline=0.0) is None
    after_one = {name: tensor.clone() for name, tensor in first.weights().items()}
    second = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    second.evaluator.accuracy = lambda: 50.0  # type: ignore[method-assign]
    result = second.run()
    assert result is not None and result.run.accuracy == Accuracy(last=50.0, best=75.0, best_epoch=1)
    best = load_file(result.folder / "best.safetensors")
    assert best.keys() == after_one.keys() and all(torch.equal(best[name], after_one[name]) for name in best)


def test_a_run_that_stopped_between_two_chunks_goes_on_in_chunks_that_meet_the_end(
    tiny_npz: Path, tmp_path: Path
) -> None:
    """Steps are recorded several at a time on a GPU, one at a time elsewhere: after 4 of 6, not 6 more at once."""
    stop = threading.Event()

    def listener(trainer: Trainer) -> None:
        if trainer.steps_done == 4:
            stop.set()

    recipe = quick(tiny_npz, batch_size=16)
    assert Trainer(recipe, CPU, out=tmp_path, results=tmp_path, listener=listener, stop=stop).run() is None
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    trainer.step.steps_per_replay = 6
    trainer.resume()
    assert (trainer.steps_done, trainer.loader.steps, trainer.step.steps_per_replay) == (4, 6, 2)


def test_checkpoints_are_written_as_often_as_asked(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps per epoch, ten seconds each by this clock; a checkpoint every twenty seconds."""
    clock, written = [0.0], []

    def listener(trainer: Trainer) -> None:
        clock[0] += 10 if trainer.steps_done else 0

    module = sys.modules["mspcaps.training.trainer"]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "save_checkpoint", lambda path, tensors, progress: written.append(progress))
    recipe = quick(tiny_npz, epochs=2, batch_size=16)
    assert Trainer(recipe, CPU, out=tmp_path, results=tmp_path, save_every=20.0, listener=listener).run()
    for odd in (float("nan"), -1.0):  # silently never, or at every step
        with pytest.raises(MspcapsError, match=f"save_every is {odd}"):
            Trainer(recipe, CPU, out=tmp_path, results=tmp_path, save_every=odd)
    positions = [(progress["epoch"], progress["step"], progress["seconds"]) for progress in written]
    assert positions == [(0, 2, 20), (0, 4, 40), (1, 0, 60), (1, 2, 80), (1, 4, 100), (2, 0, 120)]
