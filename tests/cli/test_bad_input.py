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
    """The pattern is what the sentence must say; the function prepares the mischief and returns the arguments."""

    def register(function: Case) -> Case:
        CASES[function.__name__] = (pattern, function)
        return function

    return register


@case(r"no model 'mspcaps_tt': did you mean 'mspcaps_t'")
def unknown_model(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_tt", "--batch-size", 4]


@case(r"no model matches 'caps9\*'")
def unknown_pattern(here, patch):
    return ["models", "caps9*"]


@case(r"8 x 8 pixels leaves no capsule .* nearest size that works is 13 x 13")
def impossible_size(here, patch):
    return ["models", "mspcaps_t", "--img-size", 8]


@case(r"8 x 8 pixels leaves no capsule")
def impossible_size_in_training(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_t", "--batch-size", 4, "--img-size", 8]


@case(r"num_classes is 1, but mspcaps_t needs at least 2")
def one_class(here, patch):
    return ["models", "mspcaps_t", "--num-classes", 1]


@case(r"disc\.safetensors holds weights of mspcaps_t_scale16, which mspcaps_t cannot start from")
def initial_weights_of_another_architecture(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--batch-size", 4, "--init", trained(here / "disc.safetensors")]


@case(r"mspcaps ships no weights of mspcaps_t trained on 'cifra10': did you mean mspcaps_t\.cifar10")
def misspelt_initial_weights(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--batch-size", 4, "--init", "mspcaps_t.cifra10"]


@case(r"nowhere/pictures does not exist")
def missing_folder(here, patch):
    return ["train", "--data", here / "nowhere/pictures", *TINY]


@case(r"empty holds no PNG, JPEG")
def empty_class(here, patch):
    (draw(here / "pictures") / "empty").mkdir()
    return ["train", "--data", here / "pictures", *TINY]


@case(r"pictures holds no class folders")
def empty_folder(here, patch):
    (here / "pictures").mkdir()
    return ["train", "--data", here / "pictures", *TINY]


@case(r"cannot read .*broken\.png")
def broken_png(here, patch):
    picture = draw(here / "pictures") / "disc" / "broken.png"
    Image.effect_noise((16, 16), 90).save(picture)
    picture.write_bytes(picture.read_bytes()[:150])
    return ["train", "--data", here / "pictures", *TINY]


@case(r"refused: it claims (more than|50000x50000)")
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


@case(r"is not MNIST as published")
def wrong_checksum(here, patch):
    arrays = {"x_train": (60_000, 28, 28), "y_train": (60_000,), "x_test": (10_000, 28, 28), "y_test": (10_000,)}
    np.savez(here / "fake.npz", **{name: np.zeros(shape, np.uint8) for name, shape in arrays.items()})
    return ["data", "get", "mnist", "--from", here / "fake.npz"]


@case(r"cache/cifar10\.npz is damaged")
def damaged_cache(here, patch):
    (here / "cache").mkdir()
    (here / "cache" / "cifar10.npz").write_bytes(b"PK\x03\x04 and then nothing")
    return ["data", "verify", "cifar10"]


@case(r"cannot write .*No space left")
def full_disk(here, patch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", full)
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"cannot write .*plain.*(Not a directory|File exists)")
def unwritable_target(here, patch):
    (here / "plain").write_text("a file where a folder should be")
    return ["train", "--data", draw(here / "pictures"), *TINY, "--out", here / "plain"]


@case(r"has no 'epoch': did you mean 'epochs'")
def toml_key(here, patch):
    (here / "recipe.toml").write_text("epoch = 3\n")
    return ["train", "recipe.toml"]


@case(r"epochs must be int, not 'three'")
def toml_type(here, patch):
    (here / "recipe.toml").write_text('epochs = "three"\n')
    return ["train", "recipe.toml"]


@case(r"recipe\.toml is not a valid TOML file")
def toml_syntax(here, patch):
    (here / "recipe.toml").write_text("epochs = = 3\n")
    return ["train", "recipe.toml"]


@case(r"cannot read the recipe nowhere\.toml: No such file")
def missing_toml(here, patch):
    return ["train", "nowhere.toml"]


@case(r"no recipe 'paper/cifar10/mspcaps_tt': did you mean 'paper/cifar10/mspcaps_t'")
def unknown_recipe(here, patch):
    return ["train", "paper/cifar10/mspcaps_tt"]


@case(r"say what to train")
def no_recipe(here, patch):
    return ["train"]


@case(r"'cifar11': did you mean 'cifar10'")
def unknown_dataset(here, patch):
    return ["data", "get", "cifar11"]


@case(r"run `mspcaps data get cifar10` first")
def dataset_not_cached(here, patch):
    return ["train", "paper/cifar10/mspcaps_t"]


@case(r"there is no weights file nowhere\.safetensors")
def weights_missing(here, patch):
    return ["eval", "nowhere.safetensors"]


@case(r"cut\.safetensors is not a complete safetensors file")
def weights_truncated(here, patch):
    whole = trained(here / "whole.safetensors").read_bytes()
    (here / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    return ["eval", "cut.safetensors"]


@case(r"text\.safetensors is not a complete safetensors file")
def weights_not_safetensors(here, patch):
    (here / "text.safetensors").write_text("These are not weights, however long this sentence may go on.")
    return ["predict", "text.safetensors", "x.png"]


@case(r"sd\.pt is a PyTorch file, but only safetensors is read: .*save_pretrained")
def weights_of_pytorch(here, patch):
    torch.save({"weight": torch.zeros(2)}, here / "sd.pt")
    return ["eval", "sd.pt"]


@case(r"was not written by mspcaps")
def weights_of_someone_else(here, patch):
    save_file({"weight": torch.zeros(2)}, here / "other.safetensors")
    return ["predict", "other.safetensors", "x.png"]


@case(r"does not fit the model")
def weights_of_another_model(here, patch):
    from safetensors import safe_open

    path = trained(here / "model.safetensors")
    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    header["model"] = header["model"].replace("mspcaps_t_scale16", "mspcaps_t_scale32")
    save_file(tensors, path, header)
    return ["predict", path, "x.png"]


@case(r"a class 'triangle' that the model does not know")
def data_of_other_classes(here, patch):
    draw(here / "pictures", ("disc", "triangle"))
    return ["eval", trained(here / "model.safetensors"), "--data", here / "pictures"]


@case(r"were trained on pictures, which is not here: give its path with --data")
def data_that_has_moved(here, patch):
    return ["eval", trained(here / "model.safetensors")]


@case(r"the data has changed since .*\.json was written, from 10 training images to 12: train with --overwrite")
def data_that_has_changed(here, patch):
    draw(here / "pictures")
    assert main(["train", "--data", "pictures", *TINY]) == 0
    draw(here / "more", count=1)
    for name in ("disc", "square"):
        (here / "more" / name / "0.png").rename(here / "pictures" / name / "new.png")
    return ["train", "--data", "pictures", *TINY]


@case(r"a batch of 128 is larger than the training set of 10 images")
def batch_larger_than_set(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--model", "mspcaps_t_scale16", "--batch-size", 128]


@case(r"epochs is -3, but must be at least 1")
def negative_epochs(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--epochs", -3]


@case(r"lr is nan")
def lr_not_a_number(here, patch):
    return ["train", "--data", draw(here / "pictures"), "--lr", "nan"]


@case(r"sees no GPU")
def cuda_without_gpu(here, patch):
    patch.setattr(torch.cuda, "is_available", lambda: False)
    return ["train", "quickstart", "--device", "cuda"]


@case(r"no device 'abacus'")
def unknown_device(here, patch):
    return ["train", "quickstart", "--device", "abacus"]


RUN = "runs/pictures/mspcaps_t_scale16/custom+batch_size=4+epochs=1-seed0"


@case(r"checkpoint\.safetensors is not a complete checkpoint")
def corrupt_checkpoint(here, patch):
    (here / RUN).mkdir(parents=True)
    (here / RUN / "checkpoint.safetensors").write_bytes(b"half of a checkpoint")
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"belongs to another model")
def checkpoint_of_another_model(here, patch):
    save_checkpoint(here / RUN / "checkpoint.safetensors", {"x": torch.zeros(1)}, {"recipe": {}})
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"sweep\.toml must hold a list of \[\[runs\]\]")
def empty_sweep(here, patch):
    (here / "sweep.toml").write_text("")
    return ["sweep", "sweep.toml"]


@case(r"--budget is 'soon', but must be a time such as 540s, 9m or 2h")
def bad_budget(here, patch):
    (here / "sweep.toml").write_text('[[runs]]\nrecipe = "quickstart"\n')
    return ["sweep", "sweep.toml", "--budget", "soon"]


@case(r"name at least one picture")
def nothing_to_predict(here, patch):
    return ["predict", trained(here / "model.safetensors")]


@case(r"one of the arguments is empty")
def empty_argument(here, patch):
    return ["train", "--data", draw(here / "pictures"), *TINY, "--out", ""]


@case(r"pictures/mspcaps_t_scale16/.* lies among the class folders of pictures: choose another folder with --out")
def runs_among_the_pictures(here, patch):
    draw(here / "pictures")
    return ["train", "--data", "pictures", *TINY, "--out", "."]


@case(r"lies among the class folders of \.: choose another folder with --out")
def training_inside_the_pictures(here, patch):
    patch.chdir(draw(here / "pictures"))
    return ["train", "--data", ".", *TINY]


@case(r"lies among the class folders of .*: choose another folder with --results")
def ledger_among_the_pictures(here, patch):
    draw(here / "pictures" / "train")
    draw(here / "pictures" / "val")
    return ["train", "--data", here / "pictures", *TINY, "--results", here / "pictures" / "val"]


@case(r"cannot resolve a path, so write it in full: Could not determine home directory")
def home_of_nobody(here, patch):
    return ["train", "--data", "~nobody-of-this-name/pictures", *TINY]


@case(r"Symlink loop|there is no data set, folder")
def link_to_itself(here, patch):
    (here / "loop").symlink_to("loop")
    return ["train", "--data", "loop", *TINY]


@case(r"there is no home folder to keep data sets in: set MSPCAPS_DATA to a folder")
def no_home(here, patch):
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    patch.delenv("MSPCAPS_DATA")
    patch.delenv("XDG_CACHE_HOME", raising=False)
    patch.setattr(Path, "expanduser", homeless)
    return ["data", "list"]


@case(r"num_classes is 99999999999999999999, but must be less than")
def more_classes_than_can_be_counted(here, patch):
    return ["models", "mspcaps_t", "--num-classes", 99999999999999999999]


@case(r"img_size is 100000000, but must be less than")
def larger_images_than_can_be_counted(here, patch):
    return ["models", "mspcaps_t", "--img-size", 100_000_000]


@case(r"cannot read model\.safetensors: Permission denied")
def weights_that_may_not_be_read(here, patch):
    forbid(trained(here / "model.safetensors"), patch)
    return ["predict", "model.safetensors", "x.png"]


@case(r"cannot read images\.npz: Permission denied")
def npz_that_may_not_be_read(here, patch):
    np.savez(here / "images.npz", images=np.zeros((4, 16, 16), np.uint8), labels=[0, 1, 0, 1])
    forbid(here / "images.npz", patch)
    return ["train", "--data", "images.npz", *TINY]


@case(r"cannot read .*checkpoint\.safetensors: Permission denied$")  # and no advice to remove it
def checkpoint_that_may_not_be_read(here, patch):
    save_checkpoint(here / RUN / "checkpoint.safetensors", {"x": torch.zeros(1)}, {"recipe": {}})
    forbid(here / RUN / "checkpoint.safetensors", patch)
    return ["train", "--data", draw(here / "pictures"), *TINY]


@case(r"cannot write plain/x\.pt2: Not a directory")
def file_in_place_of_a_folder(here, patch):
    (here / "plain").write_text("a file where a folder should be")
    return ["export", trained(here / "model.safetensors"), "plain/x.pt2"]


@case(r"which is not here: give its path with --calibrate")
def calibration_data_that_has_moved(here, patch):
    return ["export", trained(here / "model.safetensors"), "model.onnx", "--int8"]


@case(r"cannot read nowhere\.md: No such file or directory$")
def missing_readme(here, patch):
    (here / "results").mkdir()
    return ["report", "--readme", "nowhere.md"]


def forbid(forbidden: Path, patch: pytest.MonkeyPatch) -> None:
    """As if it belonged to somebody else: whoever runs the tests may be allowed to read everything."""
    before = Path.open

    def opened(path: Path, *args: object, **kwargs: object) -> object:
        if path.resolve() == forbidden.resolve():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return before(path, *args, **kwargs)

    patch.setattr(Path, "open", opened)


HEADERS = {
    "model": [({"name": 3}, "was not written by mspcaps"), ({"num_classes": "two"}, "the model has two"),
              ({"img_size": "big"}, r"changed\.safetensors: img_size is 'big'")],
    "classes": [(["disc", "disc"], "two classes in its header have the same name")],
    "recipe": [({"data": 3}, "the data of the recipe in its header is 3")],
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
    assert re.fullmatch(rf"error: .*{pattern}.*\n", spoken.err)


def test_weights_of_whole_numbers_are_refused(say, place):
    spoken = say("predict", rewritten(place, "model", {}, torch.int8), "x.png")
    assert spoken.status == 2
    assert re.search(r"does not fit the model: .* is torch\.int8, not torch\.float32", spoken.err)


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


UNPARSED = {
    "train --epochs many": "--epochs takes a whole number, not 'many'",
    "train --batch_size=3.5": "--batch-size takes a whole number, not '3.5'",
    "train quickstart --lr 1e --epochs 3": "--lr takes a number, not '1e'",
    "train --epochs": "--epochs takes a whole number, but none is given",
    "train --epohcs 3": "mspcaps train has no option '--epohcs': did you mean '--epochs'?",
    "train --no-flip": "mspcaps train has no option '--no-flip': did you mean '--augment.flip'?",
    "train --rotate=3": "mspcaps train has no option '--rotate': did you mean '--augment.rotate'?",
    "train --form fast": "--form takes eager, compiled or captured, not 'fast'",
    "bench train --packed four": "--packed takes a whole number, not 'four'",
    "bench tran": "WHAT takes train or infer, not 'tran': did you mean 'train'?",
    "bench": "mspcaps bench needs WHAT (train or infer)",
    "models --num-classes 1e3 mspcaps_t": "--num-classes takes a whole number, not '1e3'",
    "models --img-size 32 x --in-chans 3": "--img-size takes whole numbers, not '32 x'",
    "eval": "mspcaps eval needs WEIGHTS",
    "eval --dta x": "mspcaps eval has no option '--dta': did you mean '--data'?",
    "eval --pretraned x": "mspcaps eval has no option '--pretraned'",  # its help speaks of `models --pretrained`
    "eval some extra": "mspcaps eval does not expect 'extra'",
    "eval some --split tset": "--split takes train, test or all, not 'tset': did you mean 'test'?",
    "export": "mspcaps export needs WEIGHTS and OUT",
    "data get": "mspcaps data get needs NAME",
    "data get mnist --from": "--from takes a path, but none is given",
    "data gte mnist": "there is no command 'gte': did you mean 'get'?",
    "trian": "there is no command 'trian': did you mean 'train'?",
    "fly": "there is no command 'fly'",
    "--epochs 3 train": "mspcaps has no option '--epochs'",
    "--tyro-print-completion sh": "--tyro-print-completion takes bash, zsh, tcsh or fish",
}


@pytest.mark.parametrize("line", UNPARSED)
def test_arguments_that_do_not_parse(line, say):
    spoken = say(*line.split())
    assert (spoken.status, spoken.out) == (2, "")
    why = UNPARSED[line]
    where = re.fullmatch(rf"error: {re.escape(why)}{' See' if why[-1] == '?' else ': see'} `(.*) --help`\n", spoken.err)
    assert where, spoken.err
    assert say(*where[1].split()[1:], "--help").status == 0


def test_a_tyro_that_does_not_tell_what_is_wrong_says_it_itself(say, monkeypatch):
    monkeypatch.delattr("tyro._errors.on_parse_error")
    spoken = say("train", "--epochs", "many")
    assert spoken.status == 2
    assert "--epochs" in spoken.err


def test_a_broken_picture_spoils_no_other(say, place):
    draw(place / "pictures")
    (place / "pictures/disc/1.png").write_bytes(b"no picture")
    spoken = say("predict", trained(place / "model.safetensors"), place / "pictures", "--top", 1)
    assert spoken.status == 1
    assert len(spoken.out.splitlines()) == 11
    assert re.fullmatch(r"error: cannot read .*disc/1\.png: .*\n", spoken.err)


def test_a_folder_that_may_not_be_read_is_not_passed_over_in_silence(say, place, monkeypatch):
    draw(place / "pictures")
    before = os.scandir

    def scandir(path: object) -> object:
        if str(path).endswith("disc"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return before(path)

    monkeypatch.setattr(os, "scandir", scandir)
    spoken = say("predict", trained(place / "model.safetensors"), "pictures")
    assert (spoken.status, spoken.err) == (1, "error: cannot read pictures/disc: Permission denied\n")
    assert len(spoken.out.splitlines()) == 6


def subprocess_of(*args: str, stdout: object = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mspcaps", *args]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


def test_as_a_process():
    done = subprocess_of("train", "paper/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: there is no recipe 'paper/nowhere': .*\n", done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_on_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess_of("train", "--list", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: the disk is full\n"


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
