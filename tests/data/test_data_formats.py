import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from data_writers import idx, mat, png_header, write_files
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mspcaps.data.archives import read_gzip
from mspcaps.data.formats import (
    check_digest,
    check_labels,
    cifar_batch_from_mosaic,
    layout_of,
    parse_cifar_batch,
    parse_idx,
    parse_svhn,
    read_npz,
    read_packed,
    to_nchw,
)
from mspcaps.errors import MspcapsError


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_idx_round_trip(shape: list[int], seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    assert np.array_equal(parse_idx(idx(array)), array)


def test_gzip_is_read_plain_or_packed_and_never_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"plain": b"hello", "packed": gzip.compress(b"hello"), "bomb": gzip.compress(b"\0" * 5000)})
    assert read_gzip(tmp_path / "plain") == read_gzip(tmp_path / "packed") == b"hello"
    monkeypatch.setattr("mspcaps.data.archives.MAX_BYTES", 4000)
    with pytest.raises(MspcapsError, match="4000"):
        read_gzip(tmp_path / "bomb")
    (tmp_path / "cut").write_bytes(gzip.compress(b"hello" * 100)[:-9])
    with pytest.raises(MspcapsError, match="cut"):
        read_gzip(tmp_path / "cut")
    with pytest.raises(MspcapsError, match="No such file"):
        read_gzip(tmp_path / "absent")


def test_cifar_batch_is_planes_of_red_green_blue() -> None:
    content = b"\x07" + b"r" * 1024 + b"g" * 1024 + b"b" * 1024
    images, labels = parse_cifar_batch(content * 2)
    assert images.shape == (2, 3, 32, 32) and labels.tolist() == [7, 7]
    assert [bytes(images[1, c, 0, :1]) for c in range(3)] == [b"r", b"g", b"b"]


def test_mosaic_rows_become_the_official_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    labels = np.array([4, 0, 9], np.uint8)
    Image.fromarray(images.reshape(3, 1024, 3)).save(tmp_path / "batch.png")
    x, y = parse_cifar_batch(cifar_batch_from_mosaic(tmp_path / "batch.png", labels))
    assert y.tolist() == [4, 0, 9]
    for n in range(3):
        assert x[n, 2, 5, 17] == images[n, 5, 17, 2] and x[n, 0, 31, 1] == images[n, 31, 1, 0]
    with pytest.raises(MspcapsError, match=r"1024x3.*1024x2"):
        cifar_batch_from_mosaic(tmp_path / "batch.png", labels[:2])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
@pytest.mark.parametrize("n", [1, 2, 4, 9])
def test_svhn_axes_and_the_label_ten(n: int, dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, n), np.uint8)
    y = np.array([10, 1, 9, 10, 2, 3, 4, 5, 6], dtype)[:n, None]
    images, labels = parse_svhn(mat({"X": x, "y": y}))
    assert labels.tolist() == [0, 1, 9, 0, 2, 3, 4, 5, 6][:n] and labels.dtype == images.dtype == np.uint8
    assert images.shape == (n, 3, 32, 32) and np.array_equal(images[n - 1, 1], x[:, :, 1, n - 1])


def test_digest_mismatch_names_file_and_both_sums() -> None:
    check_digest(b"a", "md5:0cc175b9c0f1b6a831c399e269772661", "f")
    check_digest(b"a", "sha256:" + hashlib.sha256(b"a").hexdigest(), "f")
    with pytest.raises(MspcapsError, match=r"92eb5ffee6ae2fec3ad71c777531578f.*0cc175"):
        check_digest(b"b", "md5:0cc175b9c0f1b6a831c399e269772661", "f")


def test_layouts_are_recognised_by_shape() -> None:
    assert layout_of((5, 28, 28), "x") == "NHW"
    assert layout_of((5, 3, 32, 32), "x") == "NCHW" and layout_of((5, 32, 32, 3), "x") == "NHWC"
    assert layout_of((5, 13, 64, 48), "x") == "NCHW" and layout_of((5, 28, 28, 1), "x") == "NHWC"
    for shape in ((5, 3, 32, 3), (5, 9), (5, 1, 2, 3, 4)):
        with pytest.raises(MspcapsError, match="mine"):
            layout_of(shape, "mine")
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), np.uint8)
    assert to_nchw(images, "x")[1, 2, 4, 3] == images[1, 4, 3, 2]
    with pytest.raises(MspcapsError, match="uint8"):
        to_nchw(images.astype(np.float32), "x")


@pytest.mark.parametrize(
    "labels", [np.array([0.5, 1]), np.array([0, 1, 2]), np.array([-1, 0]), np.array([0, 10**9]), np.array(["a", "b"])]
)
def test_bad_labels_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(MspcapsError, match="mine"):
        check_labels(labels, 2, "mine")
    assert check_labels(np.array([[3], [1]], np.uint8), 2, "mine").tolist() == [3, 1]


def test_npz_never_unpickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x_train=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "cut.npz", x_train=np.zeros(1000))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-200])
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    for name in ("objects", "text", "cut", "single", "absent"):
        with pytest.raises(MspcapsError, match=f"{name}.npz"):
            read_npz(tmp_path / f"{name}.npz")


def _packed(folder: Path, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Parts with 130 images of 4x5 pixels, the first part holding 100, made pixel by pixel."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (130, 4, 5, channels), np.uint8)
    labels = rng.integers(0, 7, 130).astype(np.uint8)
    for part, (first, last) in enumerate(((0, 100), (100, 130))):
        canvas = np.zeros((4, 500, 3), np.uint8)
        for n in range(first, last):
            canvas[:, 5 * (n - first) : 5 * (n - first) + 5] = images[n]
        Image.fromarray(canvas).save(folder / f"train-{part:02d}.webp", lossless=True)
    np.save(folder / "train-labels.npy", labels)
    x = images if channels == 3 else images[..., 0]
    entry = {
        "shape": list(x.shape),
        "parts": [{"file": "train-00.webp", "images": 100}, {"file": "train-01.webp", "images": 30}],
        "x_sha256": hashlib.sha256(x.tobytes()).hexdigest(),
        "y_sha256": hashlib.sha256(labels.tobytes()).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps({"name": "t", "splits": {"train": entry}}))
    return images, labels


@pytest.mark.parametrize("channels", [1, 3])
def test_packed_parts(tmp_path: Path, channels: int) -> None:
    images, labels = _packed(tmp_path / "p", channels)
    packed = read_packed(tmp_path / "p")
    assert np.array_equal(packed["x_train"], images.transpose(0, 3, 1, 2)) and np.array_equal(packed["y_train"], labels)


def test_packed_parts_that_lie_are_refused(tmp_path: Path) -> None:
    _packed(tmp_path / "p", 3)
    manifest = tmp_path / "p" / "manifest.json"
    good = manifest.read_text()
    shape = '"shape": [130, 4, 5, 3]'
    for bad, reason in (
        (good.replace("train-01.webp", "../train-01.webp"), "not a plain file name"),
        (good.replace('"x_sha256": "', '"x_sha256": "0'), "x_train does not match the sha256"),
        (good.replace(shape, '"shape": [131, 4, 5, 3]'), "cannot hold"),
        (good.replace(shape, '"shape": [130, 0, 5, 3]'), "cannot hold"),
        (good.replace(shape, '"shape": [130, 3, 5, 3]'), "too few"),
        (good.replace(shape, '"shape": "big"'), "not a manifest"),
        (good.replace("train-01.webp", "train-07.webp"), "No such file"),
        ('{"splits": 3}', "not a manifest"),
        ("{", "not valid JSON"),
    ):
        assert bad != good
        manifest.write_text(bad)
        with pytest.raises(MspcapsError) as caught:
            read_packed(tmp_path / "p")
        assert reason in str(caught.value)
    manifest.write_text(good)
    (tmp_path / "p" / "train-01.webp").write_bytes(png_header(30000, 30000))
    with pytest.raises(MspcapsError, match=r"train-01\.webp"):
        read_packed(tmp_path / "p")
