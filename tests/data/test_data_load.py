import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_writers import tiny_mnist

from mspcaps.data import CATALOG, is_cached, list_datasets, load_dataset, provenance, verify
from mspcaps.data.cache import SAMPLE_FOLDER, store
from mspcaps.data.catalog import ARRAYS, Augmentation, facts
from mspcaps.errors import MspcapsError

REAL = ["mnist", "fashionmnist", "svhn", "cifar10"]
POSE = {"mnist40": (10, (40, 40)), "dsprites_pose": (3, (32, 32))}  # number of classes, image size


def test_catalog_is_complete_and_follows_the_recipe() -> None:
    assert list(CATALOG) == [*REAL, *POSE, "fashionmnist_sample"]
    for name, entry in CATALOG.items():
        assert entry.name == name and len(entry.classes) == POSE.get(name, (10,))[0]
        assert entry.img_size == POSE.get(name, (10, (32, 32)))[1]
        assert len(entry.mean) == len(entry.std) == entry.channels
        assert all(set(v.sha256) in (set(ARRAYS), set()) for v in entry.variants)
        assert entry.licence.endswith(".") and all(v.provenance.endswith(".") for v in entry.variants)
    assert facts("cifar10").augment == facts("fashionmnist").augment == Augmentation(crop=4, flip=True)
    assert facts("svhn").augment == Augmentation(crop=4, rotate=15)
    assert facts("mnist").augment == Augmentation(rotate=15)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cifar-10", "'cifar10'"), ("MNIST", "'mnist'"), ("svnh", "'svhn'"), ("imagenet", "mnist, ")],
)
def test_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(MspcapsError, match=f"{name}.*{hint}"):
        load_dataset(name, "train")


def test_absent_set_says_what_to_run(cache: Path) -> None:
    with pytest.raises(MspcapsError, match="cifar10"):
        load_dataset("cifar10", "train")
    with pytest.raises(MspcapsError, match="val"):
        load_dataset("cifar10", "val")
    with pytest.raises(MspcapsError, match="0"):
        load_dataset("fashionmnist_sample", "test", img_size=0)
    assert {status.facts.name for status in list_datasets() if status.ready} == {"fashionmnist_sample"}


def test_cache_round_trip_verify_and_damage(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, _, entry = tiny_mnist()
    monkeypatch.setitem(CATALOG, "mnist", entry)  # type: ignore[arg-type]
    path = store(entry, arrays, entry.variants[0])
    assert path == cache / "mnist.npz" and is_cached("mnist") and provenance("mnist") == verify("mnist") == "tiny"
    data = load_dataset("mnist", "test", img_size=28)
    assert np.array_equal(data.images.numpy(), arrays["x_test"]) and data.labels.dtype == torch.int64
    assert load_dataset("mnist", "train").size == (32, 32) and len(load_dataset("mnist", "all")) == 30

    content = bytearray(path.read_bytes())
    content[content.index(arrays["x_train"].tobytes()[:64]) + 500] ^= 1
    path.write_bytes(content)
    with pytest.raises(MspcapsError, match=r"mnist\.npz"):
        load_dataset("mnist", "train")
    arrays["y_test"] = arrays["y_test"][::-1]
    store(entry, arrays, entry.variants[0])
    with pytest.raises(MspcapsError, match="y_test"):
        verify("mnist")
    path.write_bytes(b"")
    with pytest.raises(MspcapsError, match=r"\.npz"):
        provenance("mnist")


def test_custom_npz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 8, 9, 3), np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "split.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    test = load_dataset(tmp_path / "split.npz", "test")
    assert test.images.shape == (10, 3, 8, 9) and test.classes == ("0", "1", "2") and test.name == "split"
    assert load_dataset(tmp_path / "split.npz", "test", img_size=4).size == (4, 4)
    np.savez(tmp_path / "one.npz", images=x[..., 0], labels=y, classes=np.array(["a", "b", "c"]))
    parts = {split: load_dataset(tmp_path / "one.npz", split) for split in ("train", "test", "all")}
    assert [len(parts[split]) for split in ("train", "test", "all")] == [24, 6, 30]
    assert parts["test"].labels.bincount().tolist() == [2, 2, 2] and parts["all"].classes == ("a", "b", "c")
    both = torch.cat([parts["train"].images, parts["test"].images]).flatten(1).tolist()
    assert sorted(both) == sorted(parts["all"].images.flatten(1).tolist())
    with pytest.raises(MspcapsError, match=r"one\.npz .*val"):  # never the training images instead
        load_dataset(tmp_path / "one.npz", "val")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x_train": np.zeros((2, 4, 4), np.uint8)}, "needs the arrays x_train and y_train"),
        ({"pictures": np.zeros(2)}, "it holds pictures"),
        (
            {"x_train": np.zeros((2, 4, 4)), "y_train": np.zeros(2, int)},
            "must be uint8 (0 to 255), not float64: store (images * 255)",
        ),
        (
            {"x_train": np.ones((2, 4, 4), bool), "y_train": np.zeros(2, int)},
            "not bool: store (images * 255).astype('uint8')",
        ),
        ({"x_train": np.full((2, 4, 4), 9e3), "y_train": np.zeros(2, int)}, "not float64: store (images // 256)"),
        (
            {"x_train": np.full((2, 4, 4), 9, int), "y_train": np.zeros(2, int)},
            "not int64: store images.astype('uint8')",
        ),
        (
            {"x_train": np.zeros((2, 4, 4), np.uint8), "y_train": np.array(["cat", "dog"])},
            "labels must be integers, not <U3: classes, labels = np.unique(labels, return_inverse=True) converts them",
        ),
        (
            {f"x_{part}": np.zeros((3, 4, 4), np.uint8) for part in ("train", "test")}
            | {"y_train": np.array([0, 1, 2]), "y_test": np.array([2, 7, 5])},
            "x: y_test has the label 5, which y_train does not have",
        ),
        (
            {"images": np.zeros((3, 4, 4), np.uint8), "labels": np.array([0, 10, 20])},
            "x: labels run up to 20, but no training image has the label 1: number the classes from 0",
        ),
        ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(3, int)}, "2 images need 2 integer labels"),
        (
            {"x_train": np.zeros((0, 4, 4), np.uint8), "y_train": np.zeros(0, int)},
            "x: the images are empty, their shape is (0, 1, 4, 4)",
        ),
        (
            {"x_train": np.zeros((1, 4, 4), np.uint8), "y_train": np.array([2]), "classes": np.array(["a", "b"])},
            "there are 2 classes",
        ),
        ({"x_train": np.zeros((1, 4, 4), np.uint8), "y_train": np.array([0]), "classes": np.zeros(2)}, "list of names"),
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(MspcapsError) as caught:
        load_dataset(tmp_path / "x.npz", "train")
    assert reason in str(caught.value)


def test_npz_whose_classes_may_lack_images(tmp_path: Path) -> None:
    """If they have names, or if there are no training images."""
    x, y = np.zeros((3, 4, 4), np.uint8), np.array([0, 2, 4])
    np.savez(tmp_path / "test.npz", x_test=x, y_test=y)
    assert len(load_dataset(tmp_path / "test.npz", "test").classes) == 5
    np.savez(tmp_path / "named.npz", x_train=x, y_train=y, classes=np.array([*"abcde"]))
    assert load_dataset(tmp_path / "named.npz", "train").classes == (*"abcde",)


def test_sample_counts_and_checksums() -> None:
    for split, per_class in {"train": 500, "test": 100}.items():
        data = load_dataset("fashionmnist_sample", split, img_size=28)
        assert data.images.shape == (10 * per_class, 1, 28, 28)
        assert data.labels.bincount().tolist() == [per_class] * 10
    assert verify("fashionmnist_sample") == provenance("fashionmnist_sample")
    entry = facts("fashionmnist_sample")
    assert (entry.train, entry.test) == (5000, 1000)
    assert "Zalando SE" in (SAMPLE_FOLDER / "LICENSE").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL, "fashionmnist_sample"])
def test_facts_hold_for_the_real_data(name: str) -> None:
    if not is_cached(name):
        pytest.skip(f"{name} is not cached; `mspcaps data get {name}` fetches it")
    verify(name)
    entry = facts(name)
    train = load_dataset(name, "train")
    assert (len(train), train.channels, train.size) == (entry.train, entry.channels, (32, 32))
    mean, std = train.mean_and_std()
    assert mean == pytest.approx(entry.mean, abs=1e-6) and std == pytest.approx(entry.std, abs=1e-6)
    assert len(load_dataset(name, "test", img_size=entry.native_size)) == entry.test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.full((4, 8, 8), np.nan)}, "float64.*finite"),
        ({"images": np.zeros((4, 0, 8), np.uint8)}, r"\(4, 1, 0, 8\)"),
        ({"classes": np.array(["a", "a"])}, "'a'"),
    ],
)
def test_npz_files_that_cannot_be_image_sets(changes: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.array([0, 1, 0, 1])} | changes
    np.savez(tmp_path / "set.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(MspcapsError, match=message):
        load_dataset(tmp_path / "set.npz", "all")


def test_a_zip_of_something_else_is_not_an_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("images.npy", "not an array")
    with pytest.raises(MspcapsError, match="images"):
        load_dataset(tmp_path / "set.npz")
