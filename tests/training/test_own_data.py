"""Skewed classes and transfer, through the trainer."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from test_trainer import Head, entry_of
from training_makers import bars

import mspcaps
from mspcaps.data import Augmentation, FolderImages, ImageSet, load_dataset
from mspcaps.errors import MspcapsError
from mspcaps.models import Task, register_model, registry, save_weights
from mspcaps.training import Recipe, Trainer, ledger, train
from mspcaps.training.images import fitting_batch, load_images
from mspcaps.training.loader import Loader, StreamingLoader
from mspcaps.training.sweep import load_sweep, run_sweep

CPU = torch.device("cpu")
AUGMENT = Augmentation(2, True, 10)


def recipe_for(data: Path, **changes: object) -> Recipe:
    base = {"data": str(data), "name": "test", "epochs": 2, "batch_size": 8, "warmup_epochs": 1, "lr": 2e-3}
    return Recipe(**base | {"img_size": 16, "augment": AUGMENT} | changes)  # type: ignore[arg-type]


@pytest.fixture
def skewed(tmp_path: Path) -> Path:
    """Pictures of bars in folders: 40 of one direction, 10 of the other, 3 squares."""
    images, labels = bars(200, 20, 3)
    for label, count in enumerate((40, 10, 3)):
        folder = tmp_path / "pictures" / "train" / f"c{label}"
        folder.mkdir(parents=True)
        for i, image in enumerate(images[labels == label][:count]):
            Image.fromarray(image).save(folder / f"{i}.png")
    shutil.copytree(tmp_path / "pictures" / "train", tmp_path / "pictures" / "test")
    return tmp_path / "pictures"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Weights of the same architecture, trained for a moment on pictures of another size with other classes."""
    images, labels = bars(32, 32, 7)
    np.savez(tmp_path / "other.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    recipe = recipe_for(tmp_path / "other.npz", img_size=32, epochs=1)
    return train(recipe, device="cpu", out=tmp_path / "o", results=tmp_path / "o").folder / "last.safetensors"


def test_the_batches_of_an_epoch_are_balanced_in_every_share() -> None:
    """One process and its share of several see the same images; the number of steps stays as it is."""
    labels = torch.tensor([0] * 50 + [1] * 14 + [2] * 3)
    data = ImageSet(torch.zeros(67, 1, 4, 4, dtype=torch.uint8), labels, tuple("abc"), "skewed")
    whole = Loader(data, 8, Augmentation(), seed=3, balance=True)
    whole.begin(4)
    assert whole.steps == Loader(data, 8, Augmentation(), seed=3).steps == 8
    counts = Counter(labels[whole.order.flatten()].tolist())
    assert max(counts.values()) - min(counts.values()) <= 1 and sum(counts.values()) == 64
    halves = [Loader(data, 8, Augmentation(), 3, rank, 2, balance=True) for rank in (0, 1)]
    for half in halves:
        half.begin(4)
    assert torch.equal(torch.cat([half.order for half in halves], dim=1), whole.order)


@pytest.mark.slow
def test_streaming_equals_resident_images_when_balanced(
    skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(skewed, balance=True)
    resident = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: 0)
    streaming = Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b")
    assert isinstance(streaming.loader, StreamingLoader)
    result = streaming.run()
    assert result is not None and resident.run.recipe["balance"] is True
    a, b = (load_file(run.folder / "last.safetensors") for run in (resident, result))
    assert all(torch.equal(a[name], b[name]) for name in a)
    plain = train(recipe_for(skewed), device="cpu", out=tmp_path / "c", results=tmp_path / "c")
    c = load_file(plain.folder / "last.safetensors")
    assert not all(torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize(("halves", "kept"), [(3, FolderImages), (4, ImageSet)])
def test_training_and_test_pictures_must_fit_into_half_the_memory(
    halves: int, kept: type, skewed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """53 pictures to train on and 53 to test on, 3 x 16 x 16 bytes each: a memory of three such sets is too small."""
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: halves * 53 * 3 * 16 * 16)
    assert [type(images) for images in load_images(recipe_for(skewed), CPU)] == [kept, type(None), kept]


@pytest.mark.slow
def test_a_run_begins_from_weights_and_says_so(skewed: Path, other: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    recipe = recipe_for(skewed, init=str(other), lr=1e-30, weight_decay=0.0, min_lr=0.0, epochs=1)
    result = train(recipe, device="cpu", out=tmp_path, results=tmp_path / "r", log=lines.append)
    old, new = load_file(other), load_file(result.folder / "last.safetensors")
    untrained = recipe_for(skewed, init="", lr=1e-30, weight_decay=0.0, min_lr=0.0, epochs=1, name="fresh")
    fresh = load_file(train(untrained, device="cpu", out=tmp_path, results=tmp_path / "r").weights)
    statistics = {name for name in new if "running" in name}  # they follow the batches even at a rate of zero
    for name in new.keys() - statistics - {"normalize.mean", "normalize.std"}:
        if name.startswith("routing."):
            assert torch.equal(new[name], fresh[name]), "initial votes depend on the seed alone"
        elif not name.endswith(".position"):
            assert torch.equal(new[name], old[name]), name
    line, about, *_ = lines  # lines about epochs come later
    assert "classes, 3 x " in about and "in batches of 8 on" in about
    assert line.startswith(f"starts from {other}: ") and "patchify.0.position" in line
    assert line.endswith("new: routing.0.w2 (other grid), routing.1.w2 (other classes)")
    entry = json.loads(next((tmp_path / "r").rglob("test-seed0.json")).read_text())
    assert entry["initial"]["transfer"] == line and len(entry["initial"]["sha256"]) == 64


@pytest.mark.slow
def test_a_resumed_run_does_not_need_the_initial_weights(skewed: Path, other: Path, tmp_path: Path) -> None:
    recipe = recipe_for(skewed, init=str(other), balance=True)
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a", log=lambda line: None)
    lines: list[str] = []
    options = {"out": tmp_path / "b", "results": tmp_path / "b", "log": lines.append}
    assert Trainer(recipe, CPU, **options).run(deadline=0.0) is None  # type: ignore[arg-type]
    other.unlink()
    resumed = train(recipe, device="cpu", **options)
    a, b = (load_file(run.folder / "last.safetensors") for run in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert sum(line.startswith("starts from") for line in lines) == 1 and resumed.run.initial == whole.run.initial
    with pytest.raises(MspcapsError, match="there is no weights file"):
        train(recipe, device="cpu", overwrite=True, **options)


def test_shipped_weights_are_known_by_name(skewed: Path, tmp_path: Path) -> None:
    recipe = recipe_for(skewed, init="mspcaps_t.mnist", epochs=1)
    lines: list[str] = []
    result = train(recipe, device="cpu", out=tmp_path, results=tmp_path, log=lines.append)
    assert result.recipe.init == "mspcaps_t.mnist" and lines[0].startswith("starts from mspcaps_t.mnist: ")
    with pytest.raises(MspcapsError, match=r"did you mean mspcaps_t\.mnist"):
        train(recipe_for(skewed, init="mspcaps_t.mnits", seed=1), device="cpu", out=tmp_path, results=tmp_path)


def test_sweeps_take_both_fields(skewed: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        f'data = "{skewed}"\nepochs = 1\nbatch_size = 8\nimg_size = 16\nbalance = true\ninit = "x.safetensors"\n'
    )
    (tmp_path / "sweep.toml").write_text(f'[[runs]]\nrecipe = "{tmp_path}/recipe.toml"\nepochs = 2\n')
    (recipe,) = load_sweep(tmp_path / "sweep.toml")
    assert recipe.balance and recipe.init == "x.safetensors"
    lines: list[str] = []
    (outcome,) = run_sweep([recipe], CPU, out=tmp_path, results=tmp_path, log=lines.append)
    assert (outcome.state, outcome.detail) == ("failed", "there is no weights file x.safetensors")


def test_a_finished_run_is_not_taken_for_one_on_changed_data(skewed: Path, tmp_path: Path) -> None:
    recipe = recipe_for(skewed, epochs=1, model="mspcaps_t_scale16")
    sweep = {"device": CPU, "out": tmp_path, "results": tmp_path / "r", "log": lambda line: None}
    run = train(recipe, device="cpu", out=tmp_path, results=tmp_path / "r").run
    assert run.images == 53 and [outcome.state for outcome in run_sweep([recipe], **sweep)] == ["known"]
    shutil.copy(skewed / "train" / "c0" / "0.png", skewed / "train" / "c0" / "new.png")
    with pytest.raises(
        MspcapsError,
        match="were 53 training images, but now there are 54: train with --overwrite to replace it, or give the new ",
    ):
        run_sweep([recipe], **sweep)
    path = ledger.entry_path(tmp_path / "r", recipe)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in entry.items() if key not in ("images", "data_sha256")}))
    assert [outcome.state for outcome in run_sweep([recipe], **sweep)] == ["known"], "older entries do not say how many"
    assert train(recipe, device="cpu", out=tmp_path, results=tmp_path / "r", overwrite=True).run.images == 54


def test_a_resumed_run_says_where_it_continues(skewed: Path, tmp_path: Path) -> None:
    recipe = recipe_for(skewed, model="mspcaps_t_scale16")
    lines: list[str] = []
    options = {"out": tmp_path, "results": tmp_path, "log": lines.append}
    assert Trainer(recipe, CPU, **options).run(deadline=0.0) is None  # type: ignore[arg-type]
    train(recipe, device="cpu", **options)
    about = [line for line in lines if line.startswith("pictures: ")]
    assert "continues" not in about[0] and about[1:] == [f"{about[0]}; continues after epoch 1"]


def test_one_class_is_refused_by_name(skewed: Path, tmp_path: Path) -> None:
    """Most often the user named the parent of the right folder."""
    shutil.copytree(skewed / "train", tmp_path / "nest" / "inner")
    with pytest.raises(
        MspcapsError, match=r"nest has only one class folder, inner, .*: name the folder whose subfolders are"
    ):
        load_images(recipe_for(tmp_path / "nest"), CPU)
    images = np.zeros((8, 16, 16), np.uint8)
    np.savez(tmp_path / "one.npz", images=images, labels=np.zeros(8, np.int64))
    with pytest.raises(MspcapsError, match=r"one\.npz has only one class, 0, but training needs at least two"):
        load_images(recipe_for(tmp_path / "one.npz"), CPU)


def test_refusals_say_what_would_work(skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(skewed, augment=Augmentation(crop=16))
    train_set, *_ = load_images(recipe, CPU)
    with pytest.raises(MspcapsError, match=r"augment\.crop is 16, .* 16 x 16 pixels: choose less than 16"):
        recipe.resolve(train_set.size)
    with pytest.raises(MspcapsError, match="cannot be split among 3 processes: choose a batch_size of 9"):
        Loader(train_set, 8, AUGMENT, seed=0, world=3)  # type: ignore[arg-type]
    assert len(train_set) == 53
    with pytest.raises(MspcapsError, match=r"batch_size of 51$"):  # 54 would be more than there are
        Loader(train_set, 53, AUGMENT, seed=0, world=3)  # type: ignore[arg-type]
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: 0)
    with pytest.raises(MspcapsError, match=r"does not: choose a smaller img_size, or put .* into a test folder"):
        load_images(recipe_for(skewed, held_out=3), CPU)


def test_a_run_that_is_refused_leaves_no_folder(skewed: Path, tmp_path: Path) -> None:
    other = entry_of(recipe_for(skewed, lr=1.0))
    ledger.write_run(ledger.entry_path(tmp_path / "r", recipe_for(skewed)), other)
    with pytest.raises(MspcapsError, match="differs in lr"):
        train(recipe_for(skewed), device="cpu", out=tmp_path / "runs", results=tmp_path / "r")
    assert not (tmp_path / "runs").exists()


def test_a_batch_that_fits_leaves_eight_steps() -> None:
    assert [fitting_batch(n) for n in (0, 10, 31, 32, 127, 128, 1023, 1024, 60_000)] == [
        2,
        2,
        2,
        4,
        8,
        16,
        64,
        128,
        128,
    ]


@pytest.mark.slow
def test_transferred_weights_learn_a_small_real_task_faster(tmp_path: Path) -> None:
    """Sixty real pictures of three garments: from CIFAR-10's weights the loss falls faster than from fresh ones."""
    split = {}
    for name, count in (("train", 20), ("test", 5)):
        data = load_dataset("fashionmnist_sample", name)
        index = torch.cat([(data.labels == label).nonzero().flatten()[:count] for label in (2, 4, 7)])
        split |= {f"x_{name}": data.images[index, 0].numpy(), f"y_{name}": np.repeat(np.arange(3), count)}
    np.savez(tmp_path / "three.npz", **split)
    losses = {"": 0.0, "mspcaps_t.cifar10": 0.0}
    for init in losses:
        for seed in (0, 1):
            recipe = recipe_for(tmp_path / "three.npz", img_size=32, augment=None, epochs=8, batch_size=10)
            recipe = recipe.replace(init=init, seed=seed)
            run = train(recipe, device="cpu", out=tmp_path, results=tmp_path, log=lambda line: None)
            losses[init] += run.history[-1].loss
    assert losses["mspcaps_t.cifar10"] < 0.85 * losses[""], losses


class Frozen(Head):
    """A linear model of pixels times a factor that is not trained."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.factor = torch.nn.Parameter(torch.ones(1), requires_grad=False)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x.flatten(1)


def test_a_frozen_weight_stays_as_it_was_given(skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a resume, which does not read the initial weights again."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_model
    def with_a_factor(task: Task) -> Frozen:
        return Frozen(task)

    initial = mspcaps.create_model("with_a_factor", num_classes=3, img_size=16)
    torch.nn.init.constant_(initial.factor, 3.0)
    save_weights(tmp_path / "initial.safetensors", initial, classes=["c0", "c1", "c2"])
    recipe = recipe_for(skewed, model="with_a_factor", init=str(tmp_path / "initial.safetensors"))
    assert Trainer(recipe, CPU, out=tmp_path, results=tmp_path).run(deadline=0.0) is None
    result = train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    last = load_file(result.folder / "last.safetensors")
    assert last["factor"].item() == result.model.factor.item() == 3
    assert not torch.equal(last["head.weight"], initial.head.weight)
