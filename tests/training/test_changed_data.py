"""Images that were replaced and checkpoints that were damaged: neither is taken for the run's own."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from test_trainer import CPU, recipe_for
from training_makers import bars

from mspcaps.data import fingerprint
from mspcaps.errors import MspcapsError
from mspcaps.models import create_model, save_weights
from mspcaps.training import Recipe, Trainer, ledger, train
from mspcaps.training.checkpoint import CHECKPOINT, read_checkpoint, save_checkpoint


def quick(data: Path, **changes: object) -> Recipe:
    return recipe_for(data, **{"model": "mspcaps_t_scale16", "epochs": 2, "batch_size": 16} | changes)


@pytest.fixture
def own_npz(tmp_path: Path) -> Path:
    return write_bars(tmp_path / "own.npz", 0)


def write_bars(path: Path, seed: int) -> Path:
    x, y = bars(60, 16, seed)
    np.savez(path, x_train=x[:40], y_train=np.arange(40) % 3, x_test=x[40:], y_test=y[40:])
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    images, _ = bars(40, 16, 2)
    for i, image in enumerate(images):
        folder = tmp_path / "pictures" / ("train" if i < 32 else "test") / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.bmp")  # all files have one size
    return tmp_path / "pictures"


def change_pixel(picture: Path) -> None:
    content = bytearray(picture.read_bytes())
    content[-1] ^= 255
    picture.write_bytes(content)


def test_a_finished_run_of_other_images_is_refused(own_npz: Path, tmp_path: Path) -> None:
    recipe, places = quick(own_npz), {"out": tmp_path, "results": tmp_path}
    run = train(recipe, device="cpu", **places).run
    assert run.data_sha256 == hashlib.sha256(own_npz.read_bytes()).hexdigest()
    assert train(recipe, device="cpu", **places).run == run, "not trained again"
    write_bars(own_npz, 5)
    with pytest.raises(
        MspcapsError, match=r"own.npz held different images, though as many for training: train with --overwrite"
    ):
        train(recipe, device="cpu", **places)
    path = ledger.entry_path(tmp_path, recipe)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in entry.items() if key != "data_sha256"}))
    assert ledger.find_run(tmp_path, recipe) is not None, "older entries do not say"
    assert train(recipe, device="cpu", overwrite=True, **places).run.data_sha256 == fingerprint(own_npz)


@pytest.mark.slow
def test_a_run_that_is_overwritten_takes_a_repeat_on_other_images_with_it(own_npz: Path, tmp_path: Path) -> None:
    """Reports would average the two, and `train` would ask for --overwrite forever."""
    recipe, places = quick(own_npz), {"device": "cpu", "results": tmp_path}
    for out in ("a", "b"):
        train(recipe, out=tmp_path / out, **places)
    kept = train(recipe, out=tmp_path / "a", overwrite=True, **places)
    assert len(ledger.list_runs(tmp_path, ledger.REPEATS)) == 1, "its images are the same"
    write_bars(own_npz, 5)
    run = train(recipe, out=tmp_path / "a", overwrite=True, **places).run
    assert run.data_sha256 != kept.run.data_sha256 and ledger.list_runs(tmp_path, ledger.REPEATS) == []
    assert train(recipe, out=tmp_path / "a", **places).run == run


def test_a_finished_run_from_other_initial_weights_is_refused(own_npz: Path, tmp_path: Path) -> None:
    weights, places = tmp_path / "start.safetensors", {"device": "cpu", "out": tmp_path, "results": tmp_path}
    recipe = quick(own_npz, init=str(weights))
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_weights(weights, create_model(recipe.model, num_classes=3, img_size=32), classes=["0", "1", "2"])
        if seed == 0:
            run = train(recipe, **places).run
            assert train(recipe, **places).run == run, "not trained again"
    with pytest.raises(MspcapsError, match=r"start.safetensors held other weights: train with --overwrite"):
        train(recipe, **places)
    weights.unlink()
    assert train(recipe, **places).run == run, "as far as can be known"


def test_a_checkpoint_of_other_images_is_refused(pictures: Path, tmp_path: Path) -> None:
    recipe = quick(pictures)
    assert Trainer(recipe, CPU, out=tmp_path, results=tmp_path).run(deadline=0.0) is None
    change_pixel(pictures / "test" / "c0" / "32.bmp")
    with pytest.raises(MspcapsError, match="pictures held different images"):
        train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    change_pixel(pictures / "test" / "c0" / "32.bmp")
    assert train(recipe, device="cpu", out=tmp_path, results=tmp_path).run.epochs == 2


def test_without_a_test_picture_only_the_training_images_are_as_many(pictures: Path, tmp_path: Path) -> None:
    recipe = quick(pictures).replace(epochs=1)
    train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    (pictures / "test" / "c0" / "32.bmp").unlink()
    with pytest.raises(MspcapsError, match="as many for training"):
        train(recipe, device="cpu", out=tmp_path, results=tmp_path)


def test_the_fingerprint_of_a_folder(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on names, classes and content, but not on dates, other files or the place of the folder."""
    before = fingerprint(pictures)
    os.utime(pictures / "train" / "c0" / "00.bmp", (1, 1))
    (pictures / "notes.txt").write_text("none of the images")
    assert fingerprint(pictures.rename(tmp_path / "moved")) == before
    moved = tmp_path / "moved"
    first = moved / "train" / "c0" / "00.bmp"
    change_pixel(first)
    assert fingerprint(moved) != before
    change_pixel(first)
    assert fingerprint(moved) == before
    first.rename(moved / "train" / "c1" / "00.bmp")
    assert fingerprint(moved) != before
    monkeypatch.setattr("mspcaps.data.load.MAX_READ", 1000)
    large = fingerprint(moved)
    with (moved / "train" / "c1" / "00.bmp").open("ab") as file:
        file.write(b" ")
    assert large not in (None, before, fingerprint(moved)), "for many pictures the sizes count"


def test_a_link_that_leads_nowhere_is_left_out_like_other_broken_pictures(pictures: Path, tmp_path: Path) -> None:
    link = pictures / "train" / "c0" / "link.bmp"
    link.symlink_to(tmp_path / "nowhere.bmp")
    before = fingerprint(pictures)
    with pytest.raises(MspcapsError, match=r"link\.bmp"):
        Trainer(quick(pictures), CPU, out=tmp_path, results=tmp_path)
    Trainer(quick(pictures, skip_broken=True), CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    (tmp_path / "nowhere.bmp").write_bytes((pictures / "train" / "c0" / "00.bmp").read_bytes())
    assert fingerprint(pictures) != before


def test_published_sets_have_none(tmp_path: Path) -> None:
    assert fingerprint("cifar10") is None and fingerprint(tmp_path / "nothing") is None


@pytest.mark.slow
@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.9])
def test_flipped_bytes_of_a_checkpoint_are_noticed(place: float, tiny_npz: Path, tmp_path: Path) -> None:
    """In its progress or in any of its tensors, whose values are still valid numbers."""
    recipe = quick(tiny_npz)
    assert Trainer(recipe, CPU, out=tmp_path, results=tmp_path).run(deadline=0.0) is None
    path = tmp_path / recipe.run_path / CHECKPOINT
    content = bytearray(path.read_bytes())
    start = int.from_bytes(content[:8], "little") + 8  # the header, then the tensors
    at = content.index(b'\\"epoch\\": 1') + 11 if place < 0.1 else start + int(place * (len(content) - start))
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(MspcapsError, match=r"checkpoint\.safetensors is damaged"):
        train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    content[at] ^= 1
    path.write_bytes(content)
    assert train(recipe, device="cpu", out=tmp_path, results=tmp_path).run.epochs == 2


def test_a_checkpoint_from_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.tensor(2), "c": torch.ones(2, dtype=torch.bfloat16)}
    (tmp_path / CHECKPOINT).write_bytes(save(tensors, metadata={"progress": '{"epoch": 1}'}))
    progress, stored = read_checkpoint(tmp_path / CHECKPOINT)
    assert progress == {"epoch": 1} and all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    save_checkpoint(tmp_path / CHECKPOINT, tensors, progress)
    again, stored = read_checkpoint(tmp_path / CHECKPOINT)
    assert again == progress and all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
