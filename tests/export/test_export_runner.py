"""Exported models answer as PyTorch does, and no torch in sight."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from export_makers import CLASSES, SOURCE, draw, seasoned, weights, without_torch

from mspcaps import evaluate, load_dataset, load_model, predict
from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import load, load_for
from mspcaps.export import OnnxModel, export_model, load_onnx, runner
from mspcaps.files import sha256_of
from mspcaps.models import read_card, registry
from mspcaps.models.resnet import resnet20

pytestmark = pytest.mark.slow  # what they share takes seconds to set up

REASON = "the extra `onnx` is not installed"
pytest.importorskip("onnxruntime", reason=REASON)
pytest.importorskip("onnxscript", reason=REASON)


def test_pixels_in_floating_point():
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    assert np.array_equal(runner.as_input(every), (torch.from_numpy(every).float() / 255).numpy())


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runner")
    export_model(load_model(weights(folder / "model.safetensors")), folder / "model.onnx")
    draw(folder / "pictures", count=4)
    (folder / "pictures" / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (folder / "empty").mkdir()
    return folder


def test_predictions_are_those_of_pytorch(place):
    paths = [place / "pictures", place / "empty", place / "pictures" / "cat" / "01.png", place / "missing.png"]
    expected = predict(load_model(place / "model.safetensors"), paths, top=2)
    found = OnnxModel(place / "model.onnx").predict(paths, top=2, batch_size=3)
    assert len(found) == len(expected) == 12
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.path, ours.error) == (theirs.path, theirs.error)
        assert [name for name, _ in ours.top] == [name for name, _ in theirs.top]
        assert [score for _, score in ours.top] == pytest.approx([score for _, score in theirs.top], abs=1e-5)
    assert {name for name, _ in found[0].top} == set(CLASSES)


def test_the_command_is_the_same_with_both(place, capsys):
    args = [str(place / "pictures"), "--top", "1"]
    said = []
    for weights_file in ("model.safetensors", "model.onnx"):
        assert main(["predict", str(place / weights_file), *args]) == 1  # one picture is broken
        said.append(capsys.readouterr())
    assert said[0] == said[1] and len(said[0].out.splitlines()) == 8


def test_an_exported_file_is_measured_like_the_weights(place, capsys):
    draw(place / "own", count=8)
    said = []
    for file in ("model.safetensors", "model.onnx"):
        assert main(["eval", str(place / file), "--data", str(place / "own"), "--split", "all", "--no-page"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0].startswith(said[1]) and "16 images" in said[1]  # a graph has no couplings to look into
    assert main(["eval", str(place / "model.onnx"), "--data", str(place / "own"), "--device", "cuda"]) == 2
    assert "--device cuda" in capsys.readouterr().err
    found = evaluate(load_onnx(place / "model.onnx"), place / "own")
    other = evaluate(load_model(place / "model.safetensors"), place / "own")
    assert other.health and not found.health
    assert torch.allclose(found.scores, other.scores, atol=1e-5) and found.ece == pytest.approx(other.ece, abs=1e-3)


def test_an_exported_file_knows_its_weights_and_keeps_no_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = weights(tmp_path / "last.safetensors")  # its recipe says: trained on `pictures`
    draw(tmp_path / "pictures")
    assert main(["export", str(file), "model.onnx"]) == main(["export", str(file), "small.onnx", "--int8"]) == 0
    for exported in ("model.onnx", "small.onnx"):
        about = OnnxModel(exported).metadata
        assert (about.data, about.sha256) == (None, sha256_of(file))
    said = []
    for command in (["last.safetensors"], ["model.onnx", "--data", "pictures"]):
        capsys.readouterr()
        assert main(["eval", *command, "--no-page"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0].startswith(said[1]) and "pictures, test: 12 images" in said[1]


def test_shipped_weights_are_measured_on_their_data(tmp_path, monkeypatch):
    about = export_model("mspcaps_t.fashionmnist", tmp_path / "t.onnx").metadata
    assert (about.data, about.sha256) == ("fashionmnist", read_card("mspcaps_t.fashionmnist").sha256)
    monkeypatch.setattr(load, "load_dataset", lambda name, *rest: load_dataset(f"{name}_sample", *rest))
    assert load_for(load_onnx(tmp_path / "t.onnx")).name == "fashionmnist_sample"


def test_what_is_not_known_is_not_told(place, tmp_path):
    """A model that was given may have been trained on since it was read; one without a recipe has no data."""
    about = OnnxModel(place / "model.onnx").metadata
    assert (about.data, about.sha256) == (None, None)
    export_model(seasoned("mspcaps_t_scale16", img_size=16), tmp_path / "new.onnx")
    new = load_onnx(tmp_path / "new.onnx")
    with pytest.raises(MspcapsError):
        load_for(new)


def test_options_that_a_file_does_not_say_are_not_guessed(tmp_path):
    """With them, scores are of another kind than those of the registered model, or images smaller than it takes."""
    for name, options, kind in (
        ("aa_capsnet", {"loss": "cross_entropy"}, "logits"),
        ("mspcaps_t", {"patch": 2}, "lengths"),
    ):
        model = seasoned(name, img_size=17 if kind == "logits" else 12, **options)
        export_model(model, tmp_path / f"{name}.onnx")
        file = load_onnx(tmp_path / f"{name}.onnx")
        assert file.scores == model.scores == kind and not hasattr(file, "criterion")


def test_a_model_of_ones_own_without_class_names(tmp_path, monkeypatch, capsys):
    """Where it was registered and where it is not, and with the classes of the data, as the torch model takes them."""
    draw(tmp_path / "own", count=8)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_builders", dict(registry._builders))

        @registry.register_model
        def own_net(task):
            return resnet20(task)

        model = seasoned("own_net", num_classes=2, img_size=16)
        export_model(model, tmp_path / "own.onnx")
        here = evaluate(load_onnx(tmp_path / "own.onnx"), tmp_path / "own")
    assert main(["eval", str(tmp_path / "own.onnx"), "--data", str(tmp_path / "own")]) == 0, capsys.readouterr().err
    there = evaluate(load_onnx(tmp_path / "own.onnx"), tmp_path / "own")
    expected = evaluate(model, tmp_path / "own")
    assert there.classes == here.classes == expected.classes == tuple(CLASSES)
    assert torch.allclose(there.scores, expected.scores, atol=1e-4)
    assert there.ece == pytest.approx(expected.ece, abs=1e-2) and here.loss == pytest.approx(expected.loss, abs=1e-4)
    assert math.isnan(there.loss), "a file has no loss"


def test_the_command_needs_no_torch(place):
    done = without_torch(place, "-m", "mspcaps", "predict", "model.onnx", "pictures/cat")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4
    done = without_torch(place, "-m", "mspcaps", "predict", "model.safetensors", "pictures/cat")
    assert "No module named 'torch'" in done.stderr  # it was not there, then


@pytest.mark.parametrize(
    ("args", "pattern"),
    [
        (["nowhere.onnx", "x.png"], r"nowhere\.onnx"),
        (["text.onnx", "x.png"], r"text\.onnx"),
        (["foreign.onnx", "x.png"], r"foreign\.onnx"),
        (["classes.onnx", "x.png"], r"classes\.onnx.*\(3, 16, 20\), \(2,\)"),
        (["channels.onnx", "x.png"], r"channels\.onnx.*\(3, 16, 20\), \(2,\)"),
        (["model.onnx", "x.png", "--device", "cuda"], r"--device cuda"),
        (["model.onnx", "x.png", "--top", "0"], r"top is 0"),
        (["model.onnx"], r"picture"),
    ],
)
def test_refusals(args, pattern, place, monkeypatch, capsys):
    import onnx

    monkeypatch.chdir(place)
    (place / "text.onnx").write_text("not a model, however long this sentence may go on")
    for key, value in (("classes", '["cat", "dog", "cow"]'), ("channels", "1")):
        file = onnx.load(place / "model.onnx")
        next(item for item in file.metadata_props if item.key == key).value = value
        onnx.save(file, place / f"{key}.onnx")
    file = onnx.load(place / "model.onnx")
    del file.metadata_props[:]
    onnx.save(file, place / "foreign.onnx")
    assert main(["predict", *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert re.search(pattern, err), err


def test_without_onnxruntime(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MspcapsError, match=r"mspcaps\[onnx\]"):
        OnnxModel(place / "model.onnx")


def test_nothing_is_left_in_the_home_folder(place, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    code = f"from mspcaps.export import OnnxModel; OnnxModel({str(place / 'model.onnx')!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "PYTHONPATH": str(SOURCE)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and list(home.rglob("*")) == []
