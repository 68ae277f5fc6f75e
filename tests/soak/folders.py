"""Folders of pictures, pictures, arrays, and what runs leave: damaged, odd, or not what they are called."""

import functools
import io
import itertools
import json
import os
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.app.hostile import FORMATS, bombs, flipped, noise, numbers, odd, save, too_large, truncated, wrong
from tests.soak.kinds import FINE, TRAIN, Kind, Prepare, prepared, written

DISC = Path("pictures/disc")
HOSTILE_FILE = "pictures/disc/hostile.png"
RUN = "runs/pictures/mspcaps_t_scale16/pictures+batch_size=4+epochs=1-seed0"
ENTRY = "results/runs/pictures/mspcaps_t_scale16/pictures+batch_size=4+epochs=1-seed0.json"


def both(*steps: Prepare) -> Prepare:
    return lambda: [step() for step in steps]


def removed(*paths: str) -> Prepare:
    def remove() -> None:
        for path in map(Path, paths):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def made(path: str) -> Prepare:
    return lambda: Path(path).mkdir(parents=True)


def split(*names: str) -> Prepare:
    """pictures/NAME/CLASS/*, the same pictures in each."""

    def arrange() -> None:
        shutil.move("pictures", "all")
        for name in names:
            shutil.copytree("all", f"pictures/{name}")

    return arrange


def linked(path: str, target: str) -> Prepare:
    return lambda: Path(path).symlink_to(target)


def cut(path: Path, share: float) -> Prepare:
    return lambda: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def noisy(path: str, kind: str = "PNG", **options: Any) -> Prepare:
    return written(path, save(noise(), kind, **options))


REFUSED: dict[str, tuple[str, Prepare]] = {
    "no folder": ("pictures", removed("pictures")),
    "nothing in it": ("pictures", both(removed("pictures"), made("pictures"))),
    "one class": ("disc", removed("pictures/square")),
    "an empty class": ("empty", made("pictures/empty")),
    "a class of text files": ("notes", written("pictures/notes/a.txt", "a")),
    "a file in place of the folder": ("pictures", both(removed("pictures"), written("pictures", "x"))),
    "a link to itself": ("link", both(removed("pictures"), linked("pictures", "pictures"))),
    "a link back": ("back", linked("pictures/back", ".")),
    "a link to nowhere": ("gone.png", linked("pictures/disc/gone.png", "nowhere.png")),
    "a pipe": ("pipe.png", lambda: os.mkfifo(DISC / "pipe.png")),
    "half a picture": ("half.png", both(noisy("pictures/disc/half.png"), cut(DISC / "half.png", 0.5))),
    "an empty file": ("empty.png", written("pictures/disc/empty.png", b"")),
    "text": ("text.png", written("pictures/disc/text.png", "no picture")),
    "many broken ones": (
        r"and \d more",
        lambda: [written(f"pictures/disc/b{i}.png", "x")() for i in range(10)],
    ),
    "floating-point pixels": ("float.tif", written("pictures/disc/float.tif", save(noise("F"), "TIFF"))),
    "a test class that is not trained": ("other", both(split("train", "test"), noisy("pictures/test/other/a.png"))),
    "no test folder": ("test", split("train")),
    "an empty class of the test": ("empty", both(split("train", "test"), made("pictures/test/empty"))),
    "val and valid": ("val.*valid", split("train", "test", "val", "valid")),
    "a class that is not UTF-8": ("UTF-8", lambda: os.mkdir(b"pictures/caf\xe9")),
    "a manifest that is none": ("manifest", written("pictures/manifest.json", "{}")),
    "a manifest that is no JSON": ("manifest", written("pictures/manifest.json", "{")),
    "a manifest that names files elsewhere": (
        "passwd|manifest",
        written(
            "pictures/manifest.json",
            json.dumps({
                "splits": {"train": {"shape": [1, 9, 9], "parts": [{"file": "../../etc/passwd", "images": 1}]}}
            }),
        ),
    ),
    "results of runs among the classes": ("runs|--out", made("pictures/runs")),
}  # fmt: skip
TOLD: dict[str, tuple[str, Prepare]] = {
    "text files beside the pictures": (r"1 \.txt", written("pictures/disc/notes.txt", "a")),
    "pictures of a kind that is not read": (r"2 \.svg", both(
        written("pictures/disc/a.svg", "<svg/>"), written("pictures/square/b.SVG", "<svg/>")
    )),
    "pictures outside the classes": ("stray.png", lambda: shutil.copy("one.png", "pictures/stray.png")),
    "a class missing from the test": ("square", both(split("train", "test"), removed("pictures/test/square"))),
    "files without a suffix": ("without a suffix", written("pictures/disc/README", "a")),
    "an archive": (r"1 \.zip", written("pictures/disc/more.zip", b"PK")),
}  # fmt: skip


HOSTILE = {truncated: 48, wrong: 25, too_large: 18, bombs: 12, numbers: 9, odd: 31}  # how many there are of each
FLIPPED = range(0, 112, 13)
READERS = (
    "predict model.safetensors {0}", TRAIN, "eval model.safetensors --data pictures --split all --no-page",
    "explain model.safetensors {0}", "predict model.safetensors pictures/disc --json",
)  # fmt: skip
uploads = functools.cache(lambda make: list(make()))  # megabytes, and seconds to make: not while tests are collected


def decodes(data: bytes) -> bool:
    """Whether Pillow, asked without us, reads every pixel of it."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            warnings.simplefilter("ignore")
            picture.convert("RGB")
            return picture.mode != "F"  # whose white is unknown
    except Exception:
        return False


def pictures() -> Iterator[Kind]:
    """Every hostile picture by one of the commands that read pictures, in turn."""
    numbered = [(make, n) for make, count in HOSTILE.items() for n in range(count)] + [(flipped, n) for n in FLIPPED]
    for (make, n), command in zip(numbered, itertools.cycle(READERS), strict=False):

        def prepare(make: Any = make, n: int = n) -> object:
            upload = uploads(make)[n]
            written(HOSTILE_FILE, upload.data)()
            return FINE if decodes(upload.data) else None

        yield Kind(
            f"{command.split()[0]}: picture {make.__name__} {n}", command.format(HOSTILE_FILE), r"hostile\.", prepare
        )


def arrays(**given: Any) -> Prepare:
    """An .npz file; by default a good one."""

    def write() -> None:
        labels = np.arange(20) % 2
        good = {"images": np.zeros((20, 16, 16), np.uint8), "labels": labels}
        np.savez("arrays.npz", **{name: array for name, array in (good | given).items() if array is not None})

    return write


def x(*shape: int, dtype: Any = np.uint8, value: float = 0) -> np.ndarray:
    return np.full(shape, value, dtype)


def split_arrays(**given: Any) -> Prepare:
    y = np.arange(10) % 2
    good = {"x_train": x(10, 16, 16), "y_train": y, "x_test": x(10, 16, 16), "y_test": y}
    return arrays(images=None, labels=None, **{k: v for k, v in (good | given).items() if v is not None})


def object_array() -> None:
    np.savez("arrays.npz", images=np.array([{"a": 1}] * 20, object), labels=np.zeros(20, int))


def zip_of(name: str, content: bytes) -> Prepare:
    def write() -> None:
        with zipfile.ZipFile("arrays.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)

    return write


def header_that_lies() -> bytes:
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }"
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


NPZ: dict[str, tuple[str, Prepare]] = {
    "half a file": ("arrays.npz", both(arrays(), cut(Path("arrays.npz"), 0.5))),
    "an empty file": ("arrays.npz", written("arrays.npz", b"")),
    "text": ("arrays.npz", written("arrays.npz", "no arrays")),
    "a zip of text": ("arrays", zip_of("a.txt", b"text")),
    "an array that lies about its size": ("arrays.npz", zip_of("images.npy", header_that_lies())),
    "Python objects": ("arrays.npz", object_array),
    "no labels": ("labels|y_train", arrays(labels=None)),
    "no images": ("images|x_train", arrays(images=None)),
    "uint16": ("uint16.*256", arrays(images=x(20, 16, 16, dtype=np.uint16, value=4000))),
    "floats from 0 to 1": ("float64.*255", arrays(images=x(20, 16, 16, dtype=float, value=0.5))),
    "floats that are none": ("float32.*finite", arrays(images=x(20, 16, 16, dtype=np.float32, value=np.nan))),
    "complex numbers": ("complex", arrays(images=x(20, 16, 16, dtype=complex))),
    "text for images": ("<U3", arrays(images=np.full((20, 16, 16), "abc"))),
    "flat images": (r"20, 256", arrays(images=x(20, 256))),
    "five axes": (r"20, 1, 1, 16, 16", arrays(images=x(20, 1, 1, 16, 16))),
    "channels on either side": (r"20, 16, 16, 16", arrays(images=x(20, 16, 16, 16))),
    "no pixels": ("arrays|0", arrays(images=x(20, 0, 0))),
    "labels of another count": ("20.*19", arrays(labels=np.zeros(19, int))),
    "labels that are fractions": ("float64", arrays(labels=np.linspace(0, 1, 20))),
    "labels that are names": ("<U", arrays(labels=np.array(["a", "b"] * 10))),
    "labels below zero": ("-1", arrays(labels=np.arange(20) % 2 - 1)),
    "labels with a gap": ("1", arrays(labels=np.arange(20) % 2 * 2)),
    "one label": ("one class|at least two", arrays(labels=np.zeros(20, int))),
    "one-hot labels": (r"20, 2", arrays(labels=np.eye(2, dtype=int)[np.arange(20) % 2])),
    "huge labels": ("99999999999", arrays(labels=np.arange(20) % 2 * 99999999999)),
    "too few to test on": ("test|at least", arrays(images=x(4, 16, 16), labels=np.arange(4) % 2)),
    "classes that are numbers": ("classes", arrays(classes=np.arange(2))),
    "fewer class names than labels": ("class", arrays(classes=np.array(["a"]))),
    "two classes of one name": ("class", arrays(classes=np.array(["a", "a"]))),
    "no test images": ("x_test", split_arrays(x_test=None)),
    "a test label that is not trained": ("y_test.*7", split_arrays(y_test=np.full(10, 7))),
    "test images of other channels": ("3", split_arrays(x_test=x(10, 16, 16, 3))),
    "images of 0 training": ("x_train|images|0", split_arrays(x_train=x(0, 16, 16), y_train=np.zeros(0, int))),
}


def finished(change: Callable[[dict[str, Any]], object] | bytes) -> Prepare:
    """A finished run whose ledger entry was changed by hand."""

    def prepare() -> None:
        from mspcaps.cli import main

        assert main(TRAIN.split()) == 0
        if isinstance(change, bytes):
            Path(ENTRY).write_bytes(change)
            return
        entry = json.loads(Path(ENTRY).read_text())
        change(entry)
        Path(ENTRY).write_text(json.dumps(entry))

    return prepare


LEDGER: dict[str, tuple[str, Prepare]] = {
    "half an entry": ("seed0.json", finished(b'{"model": "mspcaps_t_sca')),
    "an empty entry": ("seed0.json", finished(b"")),
    "a list": ("seed0.json", finished(b"[]")),
    "bytes": ("seed0.json", finished(b"\xff\xfe\x00")),
    "text for the accuracy": ("seed0.json", finished(lambda e: e["accuracy"].update(last="high"))),
    "a better accuracy": ("seed0.json", finished(lambda e: e["accuracy"].update(last=99.9))),
    "no accuracy": ("seed0.json", finished(lambda e: e.pop("accuracy"))),
    "no curve": ("seed0.json", finished(lambda e: e.pop("curve"))),
    "a longer curve": ("seed0.json", finished(lambda e: e["curve"]["accuracy"].append(50.0))),
    "a curve of text": ("seed0.json", finished(lambda e: e["curve"].update(accuracy=["a"], loss=["b"]))),
    "another seed": ("seed0.json", finished(lambda e: e.update(seed=7))),
    "another model": ("seed0.json", finished(lambda e: e.update(model="mspcaps_t"))),
    "a recipe that is text": ("seed0.json", finished(lambda e: e.update(recipe="mine"))),
    "no device": ("seed0.json", finished(lambda e: e.pop("device"))),
    "seconds that are text": ("seed0.json", finished(lambda e: e.update(seconds="long"))),
    "no epochs": ("seed0.json", finished(lambda e: e.update(epochs=0))),
}


def kinds() -> Iterator[Kind]:
    yield from prepared("folder", TRAIN, REFUSED)
    yield from prepared("folder", TRAIN, TOLD, goes_on=True)
    evaluation = "eval model.safetensors --data pictures --split all --no-page"
    told = {name: TOLD[name] for name in TOLD if "class" not in name}
    yield from prepared("evaluated folder", evaluation, told, goes_on=True)
    yield from prepared("predicted folder", "predict model.safetensors pictures", told, goes_on=True)
    yield from pictures()
    yield from prepared("npz", TRAIN.replace("pictures", "arrays.npz"), NPZ)
    yield from prepared("ledger", "report", LEDGER)
