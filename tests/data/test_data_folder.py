import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from data_writers import png_header
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mspcaps.data import load_dataset, open_folder
from mspcaps.data.folder import is_picture_folder, split_by_hash
from mspcaps.data.pictures import read_header, read_picture
from mspcaps.errors import MspcapsError


def _save(path: Path, colour: object, size: tuple[int, int] = (8, 6), mode: str = "RGB", **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes in a train and a test folder; pictures are 8 wide and 6 high, of one colour each."""
    for n in range(3):
        _save(tmp_path / "set" / "train" / "cat" / f"{n}.png", (n, 0, 0))
        _save(tmp_path / "set" / "train" / "dog" / f"{n}.bmp", (n, 100, 0))
    _save(tmp_path / "set" / "test" / "dog" / "only.gif", (0, 100, 7))
    (tmp_path / "set" / "train" / "dog" / "notes.txt").write_text("not a picture")
    return tmp_path / "set"


def test_folder_with_its_own_split(root: Path) -> None:
    train, test = load_dataset(root, "train"), load_dataset(str(root), "test")
    assert train.classes == test.classes == ("cat", "dog") and train.name == "set"
    assert train.images.shape == (6, 3, 6, 8) and train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.images[4].unique(dim=1).shape == (3, 1, 8) and train.images[4, :, 2, 3].tolist() == [1, 100, 0]
    assert test.labels.tolist() == [1] and test.images[0, :, 0, 0].tolist() == [0, 100, 7]
    assert len(load_dataset(root, "all")) == 7
    assert load_dataset(root, "train", img_size=16).size == (16, 16)
    assert load_dataset(root, "train", img_size=(4, 5)).size == (4, 5)


def test_folder_without_split_holds_out_about_a_fifth_of_each_class(tmp_path: Path) -> None:
    for name, count in (("a", 100), ("b", 60), ("c", 1)):
        for n in range(count):
            _save(tmp_path / "set" / name / "deep" / f"{n}.png", n, mode="L")
    train, test = open_folder(tmp_path / "set", "train"), open_folder(tmp_path / "set", "test")
    assert train.channels == 1 and train.size == (6, 8)
    assert not set(train.paths) & set(test.paths) and len(train) + len(test) == 161
    expected = [f"{n}.png" for n in range(100) if hashlib.sha256(f"deep/{n}.png".encode()).hexdigest()[:4] < "3333"]
    assert sorted(Path(p).name for p, k in zip(test.paths, test.labels, strict=True) if k == 0) == sorted(expected)
    assert 10 < len(expected) < 30 and 2 not in test.labels, "a single picture is for training"
    assert len(test.notes) == 1 and "no picture of c:" in test.notes[0]
    (tmp_path / "set").rename(tmp_path / "moved")
    moved = open_folder(tmp_path / "moved", "test")
    assert [Path(path).name for path in moved.paths] == [Path(path).name for path in test.paths]


def test_notes_say_what_is_not_read(root: Path) -> None:
    (root / "train" / "cat" / "LICENSE").write_text("")
    _save(root / "train" / "stray.png", 0)
    train, test = open_folder(root, "train"), open_folder(root, "test")
    assert len(train) == 6 and len(train.notes) == 2 and len(test.notes) == 3
    assert "1 .txt" in train.notes[0] and "1 without a suffix" in train.notes[0]
    assert str(root / "train" / "stray.png") in train.notes[1]
    assert "cat" in test.notes[2] and "dog" not in test.notes[2], "no picture of a cat is tested"
    for part in ("train", "test"):
        _save(root / part / "cat" / "more.png", 0)
    (root / "train" / "cat" / "LICENSE").unlink(), (root / "train" / "dog" / "notes.txt").unlink()
    (root / "train" / "stray.png").unlink()
    assert open_folder(root, "all").notes == ()


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif", "heic", "heif"])
def test_every_kind_of_picture_is_read(tmp_path: Path, suffix: str) -> None:
    shape, mode, white = (8, 6), "RGB", (255, 255, 255)
    if suffix in ("pgm", "pbm"):
        mode, white = ("L", 255) if suffix == "pgm" else ("1", 1)  # type: ignore[assignment]
    if suffix in ("heic", "heif"):
        pytest.importorskip("pillow_heif").register_heif_opener()
    kind = {"heic": "HEIF", "heif": "HEIF", "tif": "TIFF", "jfif": "JPEG", "jpe": "JPEG", "avif": "AVIF"}.get(suffix)
    _save(tmp_path / "set" / "a" / f"one.{suffix}", white, shape, mode, **({"format": kind} if kind else {}))
    images = open_folder(tmp_path / "set", "train")
    assert len(images) == 1 and images.notes == () and images.size == (6, 8)
    assert int(images[0][0].min()) > 250


def test_floating_point_pictures_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "float.tiff")
    Image.fromarray(np.full((4, 4), 70_000, np.int32)).save(tmp_path / "wide.tiff")
    for name in ("float.tiff", "wide.tiff"):
        with pytest.raises(MspcapsError, match=name):
            read_picture(tmp_path / name, (4, 4), 1)
    Image.fromarray(np.full((4, 4), 32_768, np.uint16)).save(tmp_path / "half.tiff")
    assert read_picture(tmp_path / "half.tiff", (4, 4), 1).tolist() == [[[128] * 4] * 4]


@pytest.mark.slow
@given(st.lists(st.text(min_size=1), unique=True))
def test_split_by_hash_is_a_partition_that_does_not_depend_on_the_order(names: list[str]) -> None:
    names = [name for name in names if name.isprintable()]
    train, test = split_by_hash(names)
    assert sorted(train + test) == list(range(len(names)))
    assert (train and test) or len(names) < 2
    if len(test) < len(names) - 1:
        fewer = split_by_hash(names[1:])[0]
        assert {names[1:][i] for i in fewer} <= {names[i] for i in train}, "an added picture moves none to the test set"
    backwards = split_by_hash(names[::-1])[1]
    assert {names[i] for i in test} == {names[::-1][i] for i in backwards}


def test_streaming_equals_resident_and_works_in_loader_workers(root: Path) -> None:
    stream = open_folder(root, "train", (5, 5))
    assert stream.estimated_bytes == 6 * 3 * 5 * 5
    loader = torch.utils.data.DataLoader(stream, batch_size=4, num_workers=1)  # type: ignore[arg-type]
    images, labels = zip(*loader, strict=True)
    resident = stream.resident()
    assert torch.equal(torch.cat(images), resident.images) and torch.equal(torch.cat(labels), resident.labels)


def test_sizes_are_inferred(tmp_path: Path) -> None:
    for n, size in enumerate(((10, 20), (30, 40), (50, 60))):
        _save(tmp_path / "mixed" / "a" / f"{n}.png", 0, size)
    assert open_folder(tmp_path / "mixed", "all").size == (40, 40)  # median of 30 and 50, one of the three is held out
    _save(tmp_path / "large" / "a" / "0.png", 0, (1000, 700))
    assert open_folder(tmp_path / "large", "all").size == (64, 64)


def test_both_splits_have_the_size_and_channels_of_training(tmp_path: Path) -> None:
    _save(tmp_path / "train" / "a" / "0.png", (1, 2, 3), (10, 20))
    _save(tmp_path / "test" / "a" / "0.png", 7, (30, 30), mode="L")
    test = load_dataset(tmp_path, "test")
    assert test.images.shape == (1, 3, 20, 10) and test.images.unique().tolist() == [7]


def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(np.full((2, 2), 0x8123, np.uint16)).save(path)
    assert read_picture(path, (2, 2), 1).tolist() == [[[0x81, 0x81], [0x81, 0x81]]]
    Image.new("RGBA", (1, 1), (10, 20, 30, 0)).save(path)
    assert read_picture(path, (1, 1), 3).tolist() == [[[255]], [[255]], [[255]]]
    Image.new("RGBA", (1, 1), (10, 20, 30, 255)).save(path)
    assert read_picture(path, (1, 1), 3).tolist() == [[[10]], [[20]], [[30]]]
    Image.new("1", (1, 1), 1).save(path)
    assert read_picture(path, (1, 1), 3).tolist() == [[[255]], [[255]], [[255]]]
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([9, 8, 7])
    palette.save(path)
    assert read_picture(path, (1, 1), 3).tolist() == [[[9]], [[8]], [[7]]]
    Image.new("CMYK", (4, 4), (0, 0, 0, 255)).save(tmp_path / "x.jpg")
    assert read_picture(tmp_path / "x.jpg", (1, 1), 3).max() < 10


def test_a_photo_on_its_side_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    (tmp_path / "a").mkdir()
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255  # left half white: becomes the upper half
    Image.fromarray(pixels).save(tmp_path / "a" / "x.jpg", exif=exif, quality=95)
    data = load_dataset(tmp_path, "all")
    assert data.size == (32, 16)
    assert data.images[0, :, :14].min() > 200 and data.images[0, :, 18:].max() < 50


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGB", 1), ("L", 3), ("CMYK", 3)])
def test_a_large_photo_is_decoded_small_and_looks_the_same(
    mode: str, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the full picture, resized: values differ by at most one level of 256, even in noise."""
    exif = Image.Exif()
    exif[0x0112] = 8  # rotate by 90 degrees to the left
    noise = np.random.default_rng(0).integers(0, 256, (400, 640, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(tmp_path / "x.jpg", exif=exif, quality=95)
    decoded = []
    load = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda self: decoded.append(self.size) or load(self))
    pixels = read_picture(tmp_path / "x.jpg", (24, 16), channels).astype(int)
    assert (160, 100) in decoded and (640, 400) not in decoded
    upright = Image.open(tmp_path / "x.jpg").convert("RGB").transpose(Image.Transpose.ROTATE_90)
    whole = upright.convert("L" if channels == 1 else "RGB").resize((16, 24), Image.Resampling.BILINEAR)
    assert np.abs(pixels - np.atleast_3d(whole).transpose(2, 0, 1)).max() <= 1


def test_broken_pictures_are_named(root: Path) -> None:
    victim = root / "train" / "cat" / "1.png"
    whole = victim.read_bytes()
    cases = {
        "is refused: it claims": png_header(30000, 30000),
        "is refused: it claims 9,000 x 9,000 pixels": png_header(9000, 9000),
        "is not a PNG": b"hello",
        "broken": whole[:-30],
    }
    for reason, content in cases.items():
        victim.write_bytes(content)
        with pytest.raises(MspcapsError) as caught:
            load_dataset(root, "train", img_size=8)
        assert str(victim) in str(caught.value) and reason in str(caught.value)
    victim.write_bytes(b"")
    with pytest.raises(MspcapsError, match=r"1.png"):
        load_dataset(root, "train")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_pictures_never_escape_as_another_exception(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "BMP", "WEBP", "GIF"]))
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, kind)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    for read in (read_header, lambda path: read_picture(path, (4, 4), 3)):
        try:
            read(path)
        except MspcapsError as error:
            assert str(path) in str(error)


def test_all_broken_pictures_are_named_at_once(tmp_path: Path) -> None:
    for n in range(20):
        _save(tmp_path / "set" / "a" / f"{n}.png", n)
    for n in (1, 4):
        (tmp_path / "set" / "a" / f"{n}.png").write_bytes(b"no picture")
    with pytest.raises(MspcapsError) as caught:
        load_dataset(tmp_path / "set", "all")
    assert re.fullmatch(r"cannot read .*1\.png: it is not .*; cannot read .*4\.png: it is not [^;]*", str(caught.value))
    for n in range(1, 6):
        (tmp_path / "set" / "a" / f"{n}.png").write_bytes(b"no picture")
    with pytest.raises(MspcapsError, match=r"1\.png: .*3\.png: [^;]*; and 2 more$"):
        load_dataset(tmp_path / "set", "all")


def test_a_size_beyond_memory_does_not_blame_the_picture(tmp_path: Path) -> None:
    _save(tmp_path / "x.png", 0)
    with pytest.raises(MspcapsError, match=r"x\.png.*memory"):
        read_picture(tmp_path / "x.png", (10**8, 10**8), 3)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_the_folder_of_test_pictures_has_several_names(root: Path, name: str) -> None:
    (root / "test").rename(root / name)
    assert load_dataset(root, "test").labels.tolist() == [1]
    _save(root / name / "fox" / "x.png", 0)
    with pytest.raises(MspcapsError, match=f"{name}/fox"):
        load_dataset(root, "test")
    other = "val" if name != "val" else "valid"
    (root / other).mkdir()
    with pytest.raises(MspcapsError, match=r"val\w* and val"):
        load_dataset(root, "test")
    _save(root / "test" / "cat" / "x.png", 0)
    with pytest.raises(MspcapsError, match=r"val\w* and val"):
        load_dataset(root, "test")
    shutil.rmtree(root / other)
    shutil.rmtree(root / name / "fox")
    assert load_dataset(root, "test").labels.tolist() == [0] and load_dataset(root, "val").labels.tolist() == [1]


def test_folders_without_permission_say_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", denied)
        with pytest.raises(MspcapsError, match=r"train/cat: Permission denied$"):
            open_folder(root, "train")
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: is_file(path) if path == root else denied(path))
    for look in (is_picture_folder, load_dataset):
        with pytest.raises(MspcapsError, match=r"set: Permission denied$"):
            look(root)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "x.png")
    with pytest.raises(MspcapsError, match=r"x\.png"):
        load_dataset(tmp_path, "all")


def test_folders_that_are_not_data_sets(root: Path, tmp_path: Path) -> None:
    def refused(path: Path, reason: str, split: str = "train") -> None:
        with pytest.raises(MspcapsError) as caught:
            load_dataset(path, split)
        assert reason in str(caught.value)

    refused(tmp_path / "absent", "does not exist")
    (tmp_path / "flat").mkdir()
    _save(tmp_path / "flat" / "x.png", 0)
    refused(tmp_path / "flat", "holds no class folders")
    (root / "train" / "empty").mkdir()
    refused(root, f"the class folder {root / 'train' / 'empty'} holds no PNG")
    (root / "train" / "empty").rmdir()
    _save(root / "test" / "fox" / "x.png", 0)
    refused(root, "is a class that", "test")
    (tmp_path / "one").mkdir()
    _save(tmp_path / "one" / "a" / "x.png", 0)
    refused(tmp_path / "one", "holds no pictures for the split 'test'", "test")
    (tmp_path / "x.txt").write_text("")
    refused(tmp_path / "x.txt", "neither a folder nor an .npz")


def test_link_loops_are_not_followed(tmp_path: Path) -> None:
    _save(tmp_path / "set" / "a" / "x.png", 0)
    (tmp_path / "set" / "a" / "loop").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "a" / "self.png").symlink_to("self.png")
    with pytest.raises(MspcapsError, match=r"self.png"):
        load_dataset(tmp_path / "set", "all")
    (tmp_path / "set" / "a" / "self.png").unlink()
    assert len(load_dataset(tmp_path / "set", "all")) == 1
    (tmp_path / "set" / "back").symlink_to(tmp_path)
    with pytest.raises(MspcapsError, match="link"):
        load_dataset(tmp_path / "set", "all")


def test_importing_is_light() -> None:
    code = (
        "import mspcaps.data, sys; assert not {'matplotlib', 'rich', 'tyro', 'scipy', 'safetensors'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_reading_in_threads_leaves_the_warning_filters_alone(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(10):
            Image.new("L", (8, 8), i).save(tmp_path / name / f"{i}.png")
    pictures, whole = open_folder(tmp_path, "all"), Image.open

    def slow(path, formats):
        time.sleep(0.001 * (1 + int(path.stem) % 3))  # so that threads overtake each other
        return whole(path, formats=formats)

    monkeypatch.setattr(Image, "open", slow)
    before = warnings.filters[:]
    pictures.resident()
    assert warnings.filters == before
