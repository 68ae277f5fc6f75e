"""Whatever is wrong with the input: one clear sentence on stderr, a non-zero exit, no traceback, no half a file."""

import errno
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_makers import TINY, draw, trained
from PIL import Image
from safetensors.torch import save_file

from mspcaps.cli import main
from mspcaps.training.checkpoint import save_checkpoint

Case = Callable[[Path, pytest.MonkeyPatch], list[object]]
CASES: dict[str, tuple[str, Case]] = {}


def case(pattern: str) -> Callable[[Case], Case]:
    """The pattern is what the message must name; the function prepares the mischief and returns the arguments."""

    def register(function: Case) -> Case:
        CASES[function.__name__] = (pattern, function)
        return function

    return register


@case(r"mspcaps_tt")
def unknown_model(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_tt", "--batch-size", 4]


@case(r"caps9\*")
def unknown_pattern(here, patch):
    return ["models", "caps9*"]


@case(r"8 x 8.*13 x 13")
def impossible_size(here, patch):
    return ["models", "mspcaps_t", "--img-size", 8]


@case(r"8 x 8")
def impossible_size_in_training(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_t", "--batch-size", 4, "--img-size", 8]


@case(r"num_classes is 1")
def one_class(here, patch):
    return ["models", "mspcaps_t", "--num-classes", 1]


@case(r"disc\.safetensors.*mspcaps_t_scale16")
def initial_weights_of_another_architecture(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--batch-size", 4, "--init", trained(here / "disc.safetensors")]


@case(r"cifra10.*mspcaps_t\.cifar10")
def misspelt_initial_weights(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--batch-size", 4, "--init", "mspcaps_t.cifra10"]


@case(r"nowhere/pictures")
def missing_folder(here, patch):
    return ["train", "--data", here / "nowhere/pictures", *TINY]


@case(r"pictures/empty")
def empty_class(here, patch):
    (draw(here / "pictures") / "empty").mkdir()
    return ["train", "--data", here / "pictures", *TINY]


@case(r"pictures")
def empty_folder(here, patch):
    (here / "pictures").mkdir()
    return ["train", "--data", here / "pictures", *TINY]


@case(r"broken\.png")
def broken_png(here, patch):
    picture = draw(here / "pictures") / "disc" / "broken.png"
    Image.effect_noise((16, 16), 90).save(picture)
    picture.write_bytes(picture.read_bytes()[:150])
    return ["train", "--data", here / "pictures", *TINY]


@case(r"huge\.png")
def huge_png(here, patch):
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0))
    content = header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (draw(here / "pictures") / "disc" / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return ["train", "--data", here / "pictures", *TINY]


@case(r"cifar-10-binary\.tar\.gz")
def truncated_archive(here, patch):
    (here / "raw").mkdir()
    (here / "raw" / "cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8b\x08\x00" + bytes(40))
    return ["data", "get", "cifar10", "--from", here / "raw"]


@case(r"fake\.npz")
def wrong_checksum(here, patch):
    arrays = {"x_train": (60_000, 28, 28), "y_train": (60_000,), "x_test": (10_000, 28, 28), "y_test": (10_000,)}
    np.savez(here / "fake.npz", **{name: np.zeros(shape, np.uint8) for name, shape in arrays.items()})
    return ["data", "get", "mnist", "--from", here / "fake.npz"]


@case(r"cache/cifar10\.npz")
def damaged_cache(here, patch):
    (here / "cache").mkdir()
    (here / "cache" / "cifar10.npz").write_bytes(b"PK\x03\x04 and then nothing")
    return ["data", "verify", "cifar10"]


@case(r"No space left")
def full_disk(here, patch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", full)
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"plain.*(Not a directory|File exists)")
def unwritable_target(here, patch):
    (here / "plain").write_text("a file where a folder should be")
    return ["train", "--data", draw(here / "pictures"), *TINY, "--out", here / "plain"]


@case(r"'epoch'.*'epochs'")
def toml_key(here, patch):
    (here / "recipe.toml").write_text("epoch = 3\n")
    return ["train", "recipe.toml"]


@case(r"epochs.*'three'")
def toml_type(here, patch):
    (here / "recipe.toml").write_text('epochs = "three"\n')
    return ["train", "recipe.toml"]


@case(r"recipe\.toml")
def toml_syntax(here, patch):
    (here / "recipe.toml").write_text("epochs = = 3\n")
    return ["train", "recipe.toml"]


@case(r"nowhere\.toml: No such file")
def missing_toml(here, patch):
    return ["train", "nowhere.toml"]


@case(r"'paper/cifar10/mspcaps_tt'.*'paper/cifar10/mspcaps_t'")
def unknown_recipe(here, patch):
    return ["train", "paper/cifar10/mspcaps_tt"]


@case(r"--data")
def no_recipe(here, patch):
    return ["train"]


@case(r"'cifar11'.*'cifar10'")
def unknown_dataset(here, patch):
    return ["data", "get", "cifar11"]


@case(r"mspcaps data get cifar10")
def dataset_not_cached(here, patch):
    return ["train", "paper/cifar10/mspcaps_t"]


@case(r"nowhere\.safetensors")
def weights_missing(here, patch):
    return ["eval", "nowhere.safetensors"]


@case(r"cut\.safetensors")
def weights_truncated(here, patch):
    whole = trained(here / "whole.safetensors").read_bytes()
    (here / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    return ["eval", "cut.safetensors"]


@case(r"text\.safetensors")
def weights_not_safetensors(here, patch):
    (here / "text.safetensors").write_text("These are not weights, however long this sentence may go on.")
    return ["predict", "text.safetensors", "x.png"]


@case(r"sd\.pt")
def weights_of_pytorch(here, patch):
    torch.save({"weight": torch.zeros(2)}, here / "sd.pt")
    return ["eval", "sd.pt"]


@case(r"other\.safetensors")
def weights_of_someone_else(here, patch):
    save_file({"weight": torch.zeros(2)}, here / "other.safetensors")
    return ["predict", "other.safetensors", "x.png"]


@case(r"model\.safetensors")
def weights_of_another_model(here, patch):
    from safetensors import safe_open

    path = trained(here / "model.safetensors")
    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    header["model"] = header["model"].replace("mspcaps_t_scale16", "mspcaps_t_scale32")
    save_file(tensors, path, header)
    return ["predict", path, "x.png"]


@case(r"'triangle'")
def data_of_other_classes(here, patch):
    draw(here / "pictures", ("disc", "triangle"))
    return ["eval", trained(here / "model.safetensors"), "--data", here / "pictures"]


@case(r"pictures.*--data")
def data_that_has_moved(here, patch):
    return ["eval", trained(here / "model.safetensors")]


@case(r"10.*12.*--overwrite")
def data_that_has_changed(here, patch):
    draw(here / "pictures")
    assert main(["train", "--data", "pictures", *TINY]) == 0
    draw(here / "more", count=1)
    for name in ("disc", "square"):
        (here / "more" / name / "0.png").rename(here / "pictures" / name / "new.png")
    return ["train", "--data", "pictures", *TINY]


@case(r"128.*10")
def batch_larger_than_set(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_t_scale16", "--batch-size", 128]


@case(r"epochs.*-3")
def negative_epochs(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--epochs", -3]


@case(r"lr is nan")
def lr_not_a_number(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--lr", "nan"]


@case(r"GPU")
def cuda_without_gpu(here, patch):
    patch.setattr(torch.cuda, "is_available", lambda: False)
    return ["train", "quickstart", "--device", "cuda"]


@case(r"'abacus'")
def unknown_device(here, patch):
    return ["train", "quickstart", "--device", "abacus"]


RUN = "runs/pictures/mspcaps_t_scale16/pictures+batch_size=4+epochs=1-seed0"


@case(r"checkpoint\.safetensors")
def corrupt_checkpoint(here, patch):
    (here / RUN).mkdir(parents=True)
    (here / RUN / "checkpoint.safetensors").write_bytes(b"half of a checkpoint")
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"checkpoint\.safetensors")
def checkpoint_of_another_model(here, patch):
    save_checkpoint(here / RUN / "checkpoint.safetensors", {"x": torch.zeros(1)}, {"recipe": {}})
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"sweep\.toml")
def empty_sweep(here, patch):
    (here / "sweep.toml").write_text("")
    return ["sweep", "sweep.toml"]


@case(r"'soon'")
def bad_budget(here, patch):
    (here / "sweep.toml").write_text('[[runs]]\nrecipe = "quickstart"\n')
    return ["sweep", "sweep.toml", "--budget", "soon"]


@case(r"picture")
def nothing_to_predict(here, patch):
    return ["predict", trained(here / "model.safetensors")]


@case(r"empty")
def empty_argument(here, patch):
    return ["train", "--data", draw(here / "pictures"), *TINY, "--out", ""]


@case(r"--out")
def runs_among_the_pictures(here, patch):
    draw(here / "pictures")
    return ["train", "--data", "pictures", *TINY, "--out", "."]


@case(r"--out")
def training_inside_the_pictures(here, patch):
    patch.chdir(draw(here / "pictures"))
    return ["train", "--data", ".", *TINY]


@case(r"--results")
def ledger_among_the_pictures(here, patch):
    draw(here / "pictures" / "train")
    draw(here / "pictures" / "val")
    return ["train", "--data", here / "pictures", *TINY, "--results", here / "pictures" / "val"]


@case(r"home")
def home_of_nobody(here, patch):
    return ["train", "--data", "~nobody-of-this-name/pictures", *TINY]


@case(r"loop")
def link_to_itself(here, patch):
    (here / "loop").symlink_to("loop")
    return ["train", "--data", "loop", *TINY]


@case(r"MSPCAPS_DATA")
def no_home(here, patch):
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    patch.delenv("MSPCAPS_DATA")
    patch.delenv("XDG_CACHE_HOME", raising=False)
    patch.setattr(Path, "expanduser", homeless)
    return ["data", "list"]


@case(r"99999999999999999999")
def more_classes_than_can_be_counted(here, patch):
    return ["models", "mspcaps_t", "--num-classes", 99999999999999999999]


@case(r"100000000")
def larger_images_than_can_be_counted(here, patch):
    return ["models", "mspcaps_t", "--img-size", 100_000_000]


@case(r"model\.safetensors: Permission denied")
def weights_that_may_not_be_read(here, patch):
    forbid(trained(here / "model.safetensors"), patch)
    return ["predict", "model.safetensors", "x.png"]


@case(r"images\.npz: Permission denied")
def npz_that_may_not_be_read(here, patch):
    np.savez(here / "images.npz", images=np.zeros((4, 16, 16), np.uint8), labels=[0, 1, 0, 1])
    forbid(here / "images.npz", patch)
    return ["train", "--data", "images.npz", *TINY]


@case(r"checkpoint\.safetensors: Permission denied$")  # and no advice to remove it
def checkpoint_that_may_not_be_read(here, patch):
    save_checkpoint(here / RUN / "checkpoint.safetensors", {"x": torch.zeros(1)}, {"recipe": {}})
    forbid(here / RUN / "checkpoint.safetensors", patch)
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"plain/x\.pt2: Not a directory")
def file_in_place_of_a_folder(here, patch):
    (here / "plain").write_text("a file where a folder should be")
    return ["export", trained(here / "model.safetensors"), "plain/x.pt2"]


@case(r"--calibrate")
def calibration_data_that_has_moved(here, patch):
    return ["export", trained(here / "model.safetensors"), "model.onnx", "--int8"]


@case(r"nowhere")
def missing_results(here, patch):
    return ["report", "--results", "nowhere"]


def forbid(forbidden: Path, patch: pytest.MonkeyPatch) -> None:
    """As if it belonged to somebody else: whoever runs the tests may be allowed to read everything."""
    before = Path.open

    def opened(path: Path, *args: object, **kwargs: object) -> object:
        if path.resolve() == forbidden.resolve():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return before(path, *args, **kwargs)

    patch.setattr(Path, "open", opened)


HEADERS = {
    "model": [({"name": 3}, ""), ({"num_classes": "two"}, "two"), ({"img_size": "big"}, "img_size.*'big'")],
    "classes": [(["disc", "disc"], "")],
    "recipe": [({"data": 3}, "3")],
}  # fmt: skip


def rewritten(here: Path, key: str, change: object, cast: torch.dtype | None = None) -> str:
    """Weights whose header, or whose tensors, somebody has changed."""
    from safetensors import safe_open

    with safe_open(trained(here / "model.safetensors"), "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    header[key] = json.dumps(json.loads(header[key]) | change if isinstance(change, dict) else change)
    save_file(
        {name: tensor.to(cast or tensor.dtype) for name, tensor in tensors.items()},
        here / "changed.safetensors",
        header,
    )
    return "changed.safetensors"


@pytest.mark.parametrize(("key", "change", "pattern"), [(key, *row) for key, rows in HEADERS.items() for row in rows])
def test_weights_whose_header_was_changed(key, change, pattern, say, place):
    spoken = say("eval", rewritten(place, key, change))
    assert spoken.status == 2
    assert re.fullmatch(rf"error: .*changed\.safetensors.*{pattern}.*\n", spoken.err)


def test_weights_of_whole_numbers_are_refused(say, place):
    spoken = say("predict", rewritten(place, "model", {}, torch.int8), "x.png")
    assert spoken.status == 2
    assert re.search(r"torch\.int8.*torch\.float32", spoken.err)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_clear_sentence(name, say, place, monkeypatch):
    pattern, prepare = CASES[name]
    args = prepare(place, monkeypatch)
    before = {path for path in place.rglob("*") if path.is_file()}
    spoken = say(*args)
    assert spoken.status == 2
    lines = spoken.err.strip().splitlines()
    assert len(lines) == 1, spoken.err
    assert lines[0].startswith("error: ")
    assert re.search(pattern, lines[0]), lines[0]
    assert "Traceback" not in spoken.err + spoken.out
    left = {path for path in place.rglob("*") if path.is_file()} - before
    assert not [path for path in left if path.suffix in (".part", ".json", ".safetensors", ".npz")], left


UNPARSED = {  # the arguments -> what the message must name
    "train --epochs many": "--epochs.*many",
    "train --batch_size=3.5": "--batch-size.*3.5",
    "train quickstart --lr 1e --epochs 3": "--lr.*1e",
    "train --epochs": "--epochs",
    "train --epohcs 3": "--epohcs.*--epochs",
    "train --no-flip": "--no-flip.*--augment.flip",
    "train --rotate=3": "--rotate",
    "train --form fast": "--form",
    "bench train --packed four": "--packed.*four",
    "bench tran": "tran.*train",
    "bench": "WHAT",
    "models --num-classes 1e3 mspcaps_t": "--num-classes.*1e3",
    "models --img-size 32 x --in-chans 3": "--img-size.*x",
    "eval some --dta x": "--dta.*--data",
    "eval some --split tset": "tset.*test",
    "export": "WEIGHTS.*OUT",
    "data get": "NAME",
    "data get mnist --from": "--from",
    "data gte mnist": "'gte'.*'get'",
    "trian": "'trian'.*'train'",
    "fly": "'fly'",
    "--epochs 3 train": "--epochs",
    "--tyro-print-completion sh": "sh",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", UNPARSED)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_arguments_that_do_not_parse(line, columns, say, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    spoken = say(*line.split())
    assert (spoken.status, spoken.out) == (2, "")
    assert re.fullmatch(rf"error: .*{UNPARSED[line]}.*\n", spoken.err) and "---" not in spoken.err, spoken.err


def test_a_broken_picture_spoils_no_other(say, place):
    draw(place / "pictures")
    (place / "pictures/disc/1.png").write_bytes(b"no picture")
    spoken = say("predict", trained(place / "model.safetensors"), place / "pictures", "--top", 1)
    assert spoken.status == 1
    assert len(spoken.out.splitlines()) == 11
    assert re.fullmatch(r"error: .*disc/1\.png.*\n", spoken.err)


def test_a_folder_that_may_not_be_read_is_not_passed_over_in_silence(say, place, monkeypatch):
    draw(place / "pictures")
    before = os.scandir

    def scandir(path: object) -> object:
        if str(path).endswith("disc"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return before(path)

    monkeypatch.setattr(os, "scandir", scandir)
    spoken = say("predict", trained(place / "model.safetensors"), "pictures")
    assert spoken.status == 1
    assert re.fullmatch(r"error: .*pictures/disc: Permission denied\n", spoken.err)
    assert len(spoken.out.splitlines()) == 6


def subprocess_of(*args: str, stdout: object = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mspcaps", *args]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


@pytest.mark.slow
def test_as_a_process():
    done = subprocess_of("train", "paper/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*'paper/nowhere'.*\n", done.stderr)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_on_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess_of("train", "--list", stdout=full)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*full.*\n", done.stderr)


@pytest.mark.slow
def test_a_reader_that_has_seen_enough():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = subprocess_of("train", "--list", stdout=gone)
    assert done.returncode == 1
    assert done.stderr == ""


def test_output_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["train", "--list"]) == 0
