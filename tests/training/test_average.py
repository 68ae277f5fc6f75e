"""The moving average of the weights, and validation images that choose the epoch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mspcaps.data import Augmentation
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import evaluate
from mspcaps.models import create_model, load_model
from mspcaps.training import Epoch, Recipe, Trainer, ledger, train
from mspcaps.training.average import frozen_twin
from mspcaps.training.images import load_images, measure_custom_images
from mspcaps.training.result import BEST, LAST

CPU = torch.device("cpu")


def recipe_for(data: Path, **changes: Any) -> Recipe:
    base: dict[str, Any] = {"data": str(data), "name": "test", "epochs": 3, "batch_size": 16, "warmup_epochs": 1}
    return Recipe(**base | {"lr": 2e-3, "img_size": 16, "augment": Augmentation(2, True)} | changes)


@pytest.mark.slow
def test_the_average_is_that_of_a_plain_loop(tiny_npz: Path, tmp_path: Path) -> None:
    """Over weights and BatchNorm statistics, after every step, with the decay growing from 2/11."""
    states: list[dict[str, Tensor]] = []

    def listener(trainer: Trainer) -> None:
        if trainer.steps_done:  # not at the end of an epoch, which adds no step
            states.append({n: t.clone() for n, t in (trainer.model.state_dict() | trainer.optimizer.masters()).items()})

    recipe = recipe_for(tiny_npz, ema=0.6, epochs=2)
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path, listener=listener)
    average = {n: t.clone() for n, t in trainer.model.state_dict().items()}
    result = trainer.run()
    assert result is not None and len(states) == 12
    for step, state in enumerate(states, start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        for name in average:
            average[name] = decay * average[name] + (1 - decay) * state[name]
    saved = load_file(result.folder / "last.safetensors")
    for name in average:
        torch.testing.assert_close(saved[name], average[name], rtol=1e-4, atol=1e-6)
    moved = [n for n in average if not torch.allclose(saved[n], states[-1][n], rtol=1e-3, atol=1e-5)]
    assert any("running_mean" in n for n in moved) and any(n.endswith("weight") for n in moved)
    *_, test = load_images(recipe, CPU)
    for model in (load_model(result.weights), result.model):
        assert evaluate(model, test, device="cpu").accuracy == pytest.approx(result.history[-1].accuracy)


def test_a_frozen_twin_shares_memory_and_needs_no_gradients() -> None:
    model = create_model("mspcaps_t", img_size=16, num_classes=3)
    twin = frozen_twin(model)
    x = torch.rand(2, 3, 16, 16)
    assert model.training and not twin.training and not any(p.requires_grad for p in twin.parameters())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
        model.backbone.blocks[0].first.bn.running_mean.add_(0.1)
        assert torch.equal(twin(x), model.eval()(x))
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_with_an_average_and_validation_resumes_to_the_same_bits(
    tiny_npz: Path, tmp_path: Path, epochs: int
) -> None:
    recipe = recipe_for(tiny_npz, ema=0.9, validation=24)
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a", progress=False)
    for _ in range(epochs):
        assert Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b").run(deadline=0.0) is None
    resumed = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b", progress=False)
    for file in ("last.safetensors", "best.safetensors"):
        assert (whole.folder / file).read_bytes() == (resumed.folder / file).read_bytes()
    assert whole.history == resumed.history and whole.run.curve == resumed.run.curve
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


@pytest.mark.slow
def test_the_epoch_best_on_the_validation_images_is_reported(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the best one on the test images nor the last."""
    recipe = recipe_for(tiny_npz, validation=24)
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    assert trainer.watched == "validation" and trainer.loader.n == 72 and len(trainer.evaluator.data) == 24
    scores, states = iter([50.0, 75.0, 75.0]), []

    def score() -> float:
        states.append({name: tensor.clone() for name, tensor in trainer.weights().items()})
        return next(scores)

    monkeypatch.setattr(trainer.evaluator, "accuracy", score)
    result = trainer.run()
    assert result is not None and result.weights.name == "best.safetensors"
    for tensors in (load_file(result.weights), result.model.state_dict()):
        assert all(torch.equal(tensors[name], tensor) for name, tensor in states[1].items())
    *_, test = load_images(recipe, CPU)
    last, best = (evaluate(load_model(result.folder / name), test, device="cpu").accuracy for name in (LAST, BEST))
    assert result.run.accuracy == ledger.Accuracy(last, best, 2, "validation")
    assert result.run.curve["validation"] == [50.0, 75.0, 75.0]
    entry = ledger.entry_path(tmp_path, recipe)
    assert ledger.read_run(entry) == result.run
    again = train(recipe, device="cpu", out=tmp_path, results=tmp_path, progress=False)
    assert again.weights == result.weights and [row.score for row in again.history] == [50.0, 75.0, 75.0]
    written = json.loads(entry.read_text())
    written["accuracy"]["best_epoch"] = 3
    entry.write_text(json.dumps(written))
    with pytest.raises(MspcapsError, match="does not match its curve"):
        ledger.read_run(entry)


def test_validation_images_are_neither_trained_nor_measured_on(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, validation=20, held_out=10)
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    parts = [trainer.loader.images, trainer.evaluator.data.images, trainer.test.images]  # type: ignore[union-attr]
    assert [len(part) for part in parts] == [66, 20, 10] and measure_custom_images(recipe) == (66, (16, 16))
    whole, *_ = load_images(recipe_for(tiny_npz), CPU)
    pixels = sorted(tuple(image.flatten().tolist()) for part in parts for image in part)
    assert pixels == sorted(tuple(image.flatten().tolist()) for image in whole.images)  # type: ignore[union-attr]
    with pytest.raises(MspcapsError, match="validation is 5000, but must lie between 1 and 95"):
        Trainer(replace(recipe, validation=5000, held_out=0), CPU, out=tmp_path, results=tmp_path)


def test_old_rows_have_no_validation() -> None:
    assert Epoch.from_dict({"epoch": 1, "lr": 0.1, "loss": 1.0, "accuracy": 50.0}).score == 50.0


@pytest.mark.parametrize(("field", "value"), [("ema", 1.0), ("ema", -0.1), ("validation", -1)])
def test_bad_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(MspcapsError, match=f"{field} is {value}"):
        Recipe(**{field: value})  # type: ignore[arg-type]
