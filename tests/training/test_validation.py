"""Validation images choose the epoch; the test images are used once."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_trainer import CPU, recipe_for
from training_makers import bars

from mspcaps.data import load_dataset
from mspcaps.data.load import has_validation
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import evaluate
from mspcaps.models import load_model
from mspcaps.report import write_report
from mspcaps.training import Recipe, Trainer, ledger, train
from mspcaps.training.evaluator import Evaluator
from mspcaps.training.images import load_images
from mspcaps.training.recipe import Adversary

COUNTS = {"train": 48, "val": 12, "test": 18}


def quick(data: Path, **changes: object) -> Recipe:
    return recipe_for(data, **{"model": "mspcaps_t_scale16", "epochs": 4, "batch_size": 16} | changes)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    arrays = {}
    for seed, (part, count) in enumerate(COUNTS.items()):
        images, labels = bars(count, 16, seed)
        labels[:3] = range(3)
        arrays |= {f"x_{part}": images, f"y_{part}": labels}
    return arrays


@pytest.fixture
def three_npz(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(tmp_path / "three.npz", **arrays)
    return tmp_path / "three.npz"


@pytest.fixture
def folder(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        for i, (image, label) in enumerate(zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)):
            place = tmp_path / "three" / name / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i:02}.png")
    return tmp_path / "three"


@pytest.mark.parametrize("kind", ["three_npz", "folder"])
def test_a_data_set_may_have_three_parts(kind: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(kind)
    assert has_validation(data) and {part: len(load_dataset(data, part)) for part in COUNTS} == COUNTS
    assert len(load_dataset(data, "all")) == 78
    sets = load_images(quick(data), CPU)
    assert [len(images) for images in sets if images is not None] == [48, 12, 18]
    with pytest.raises(MspcapsError, match=r"validation is 5, but .* has validation images of its own"):
        load_images(quick(data, validation=5), CPU)


def test_validation_images_alone_are_tested_on(tmp_path: Path, arrays: dict[str, np.ndarray], folder: Path) -> None:
    np.savez(tmp_path / "two.npz", **{key: array for key, array in arrays.items() if not key.endswith("test")})
    (folder / "test").rename(tmp_path / "elsewhere")
    for data in (tmp_path / "two.npz", folder):
        assert not has_validation(data) and len(load_dataset(data, "test")) == 12
        assert [images and len(images) for images in load_images(quick(data), CPU)] == [48, None, 12]
        with pytest.raises(MspcapsError, match=r"val"):
            load_dataset(data, "val")


def test_labels_of_validation_images_must_be_trained(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    arrays["y_val"][0] = 3
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(MspcapsError, match="y_val has the label 3"):
        load_dataset(tmp_path / "odd.npz", "train")


def test_the_test_images_are_used_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    counted = Evaluator.count_all

    def spy(self: Evaluator) -> None:
        looks.append(len(self.data))
        counted(self)

    monkeypatch.setattr(Evaluator, "count_all", spy)
    lines: list[str] = []
    result = train(quick(folder), device="cpu", out=tmp_path, results=tmp_path, log=lines.append)
    run = result.run
    assert looks == [12] * 4 + [18] * 2, "validation after every epoch; test at the end, last and best"
    scores = [row.score for row in result.history]
    assert run.curve["accuracy"] == run.curve["validation"] == [round(score, 4) for score in scores]
    assert run.accuracy.best_epoch == scores.index(max(scores)) + 1
    measured = [
        evaluate(load_model(result.folder / file), load_dataset(folder, "test"), device="cpu").accuracy
        for file in ("last.safetensors", "best.safetensors")
    ]
    assert [run.accuracy.last, run.accuracy.best] == pytest.approx(measured)
    assert (run.accuracy.chosen_on, run.watched, run.measured_on) == ("validation", "validation", "test")
    assert result.weights.name == "best.safetensors"
    assert ledger.read_run(ledger.entry_path(tmp_path, quick(folder))) == run
    assert "validation" in lines[-3] and "48 training, 12 validation and 18 test images" in lines[0]
    again = train(quick(folder), device="cpu", out=tmp_path, results=tmp_path, log=lines.append)
    assert again.weights == result.weights and "validation" in lines[-2]
    write_report(tmp_path, tmp_path / "report")
    lines = (tmp_path / "report" / "report.md").read_text().splitlines()
    row = next(line for line in lines if "mspcaps_t_scale16" in line)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[3:7] == ["test", *(f"{value:.2f}" for value in measured), "validation"]


def test_without_validation_images_the_protocol_is_the_papers(tiny_npz: Path, tmp_path: Path) -> None:
    """A test accuracy after every epoch; the last is reported, the best is mentioned."""
    run = train(quick(tiny_npz), device="cpu", out=tmp_path, results=tmp_path).run
    curve = run.curve["accuracy"]
    assert [run.accuracy.last, run.accuracy.best] == pytest.approx([curve[-1], max(curve)], abs=1e-3)
    assert (run.accuracy.chosen_on, run.watched, run.validated) == ("test", "test", False)


def test_an_adversary_may_use_the_sets_own_validation_images(three_npz: Path, tiny_npz: Path, tmp_path: Path) -> None:
    adversary = Adversary(steps=1)
    trainer = Trainer(quick(three_npz, adversary=adversary), CPU, out=tmp_path, results=tmp_path)
    robust = trainer.robust_evaluator
    assert robust is not None and len(robust.data) == len(trainer.evaluator.data) == 12
    with pytest.raises(MspcapsError, match="validation is 0"):
        Trainer(quick(tiny_npz, adversary=adversary), CPU, out=tmp_path, results=tmp_path)


@pytest.mark.slow
def test_patience_ends_a_run_and_changes_nothing_else(three_npz: Path, tmp_path: Path) -> None:
    """The epochs are the first ones of the whole run, as many as a plain loop counts, resumed or not."""
    base = quick(three_npz, epochs=12, lr=5e-3)
    whole = train(base, device="cpu", out=tmp_path, results=tmp_path)
    scores, best, since, count = [row.score for row in whole.history], -1.0, 0, 0
    while count < 12 and since < 2:
        since = 0 if scores[count] > best else since + 1
        best, count = max(best, scores[count]), count + 1
    assert count < 11, "otherwise this shows nothing"
    recipe = base.replace(patience=2)
    early = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    assert early.history == whole.history[:count] and early.run.epochs == count
    assert early.run.recipe["epochs"] == 12 and early.run.accuracy.best_epoch == count - 2
    for _ in range(count - 1):
        assert Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b").run(deadline=0.0) is None
    resumed = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    for file in ("last.safetensors", "best.safetensors"):
        assert (early.folder / file).read_bytes() == (resumed.folder / file).read_bytes()
    reread = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    assert reread.run == resumed.run and [row.lr for row in reread.history] == [row.lr for row in whole.history[:count]]


def test_patience_needs_validation_images(tiny_npz: Path) -> None:
    with pytest.raises(MspcapsError, match="patience is 3"):
        Recipe(patience=3)
    with pytest.raises(MspcapsError, match="patience is 3"):
        load_images(quick(tiny_npz, patience=3), CPU)
    assert Recipe(patience=3, validation=100).patience == 3


def test_a_shorter_curve_needs_a_reason(three_npz: Path, tmp_path: Path) -> None:
    path = ledger.entry_path(tmp_path, quick(three_npz))
    train(quick(three_npz), device="cpu", out=tmp_path, results=tmp_path)
    entry = json.loads(path.read_text())
    entry["curve"] = {key: values[:2] for key, values in entry["curve"].items() if key != "health"}
    entry["epochs"] = 2
    path.write_text(json.dumps(entry))
    with pytest.raises(MspcapsError, match="does not match its curve"):
        ledger.read_run(path)
