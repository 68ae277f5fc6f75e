"""Exported files give PyTorch's answers, at batches that they were not traced with; what would not is not written."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from export_makers import CLASSES, draw, seasoned, weights

from mspcaps import list_models, load_model
from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import load_for
from mspcaps.export import Metadata, export_model, quantize
from mspcaps.export import model as export_module
from mspcaps.export.graphs import METADATA_FILE, exporting
from mspcaps.export.model import check_parity, describe
from mspcaps.models import Model, Task, create_model, register_model, registry, summarize

REASON = "the extra `onnx` is not installed"
# One of each kind: other scales, patches, losses and widths are the same graphs with other numbers in them.
# tools/export_table.py does the same with all models, and a test of its table asks for all of them.
KINDS = {
    "mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_p3", "mspcaps_t_scale16", "mspcaps_t_scale32_16", "mspcaps_t_dr",
    "mspcaps_t_self", "mspcaps_t_mean", "mspcaps_t_add", "mspcaps_t_concat", "mspcaps_t_linear", "resnet20", "capsnet",
    "aa_capsnet", "ar_capsnet", "da_capsnet", "deepcaps", "efficient_capsnet", "idp_capsnet", "orthcaps_s",
    "rs_capsnet", "capsnet_cifar", "lacaps_t",
}  # fmt: skip
SOAKED = KINDS - {"mspcaps_t", "mspcaps_t_dr", "lacaps_t", "capsnet", "da_capsnet", "efficient_capsnet", "orthcaps_s"}
SLOW = {"orthcaps_d"}  # 27 routings: its export alone takes longer than a hundred seconds
ALIKE = {
    "mspcaps_t_p2", "mspcaps_t_scale32", "mspcaps_t_scale8", "mspcaps_t_linear_margin", "lacaps_t_average",
    "lacaps_t_linear",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def model(place):
    return load_model(weights(place / "model.safetensors"))


def scores(path: Path, images: torch.Tensor) -> np.ndarray:
    """With onnxruntime alone, none of our code."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return session.run(None, {given.name: images.numpy()})[0]


def test_a_new_model_is_exported_here_or_is_like_one_that_is():
    large = ("mspcaps_l", "lacaps_l", "resnet18")
    assert {name for name in list_models() if not name.startswith(large)} == KINDS | ALIKE | SLOW


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(kind, marks=[pytest.mark.soak] if kind in SOAKED else []) for kind in sorted(KINDS)]
)
def test_every_kind_of_model_as_onnx(name, tmp_path):
    pytest.importorskip("onnxscript", reason=REASON)
    pytest.importorskip("onnxruntime", reason=REASON)
    fresh = seasoned(name)
    made = export_model(fresh, tmp_path / "model.onnx")
    assert set(made.differences) == {1, 3, 8} and max(made.differences.values()) <= 1e-5
    for batch in (1, 3, 8):
        x = torch.rand(batch, 3, 32, 32, generator=torch.Generator().manual_seed(100 + batch))
        with torch.no_grad():
            expected = fresh(x).numpy()
        found = scores(tmp_path / "model.onnx", x)
        assert found.shape == expected.shape and np.ptp(expected) > 1e-3
        assert np.abs(found - expected).max() <= 1e-5


@pytest.mark.slow
def test_what_an_onnx_file_says(model, tmp_path, capfd):
    onnx = pytest.importorskip("onnx", reason=REASON)
    pytest.importorskip("onnxscript", reason=REASON)
    made = export_model(model, tmp_path / "new" / "model.onnx")
    assert capfd.readouterr() == ("", "")  # the exporters like to talk
    file = onnx.load(made.path)
    onnx.checker.check_model(file, full_check=True)
    said = {item.key: item.value for item in file.metadata_props}
    assert (said["model"], said["task"]) == ("mspcaps_t_scale16", "image-classification")
    assert [json.loads(said[key]) for key in ("classes", "img_size", "channels")] == [CLASSES, [16, 20], 3]
    assert Metadata.from_strings(said, made.path) == describe(model) == made.metadata
    (given,), (answer,) = file.graph.input, file.graph.output
    sizes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (given, answer)]
    assert (given.name, answer.name, sizes) == ("image", "scores", [["batch", 3, 16, 20], ["batch", 2]])
    assert "BatchNormalization" not in {node.op_type for node in file.graph.node}  # folded into the convolutions
    assert str(Path(__file__).parents[2]).encode() not in made.path.read_bytes()  # no paths of this machine
    assert made.bytes == made.path.stat().st_size and [p.name for p in made.path.parent.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_pt2_is_the_model_again(model, tmp_path):
    made = export_model(model, tmp_path / "model.pt2")
    extra = {METADATA_FILE: ""}
    module = torch.export.load(made.path, extra_files=extra).module()
    assert Metadata.from_strings(json.loads(extra[METADATA_FILE]), made.path) == made.metadata
    assert str(Path(__file__).parents[2]).encode() not in made.path.read_bytes()
    for batch in (1, 5):
        x = torch.rand(batch, 3, 16, 20)
        with torch.no_grad():
            torch.testing.assert_close(module(x), model(x), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_callers_model_stays_as_it_was(tmp_path):
    fresh = seasoned("mspcaps_t_scale16", img_size=16).double().train()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    export_model(fresh, tmp_path / "model.pt2")
    assert fresh.training and all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())
    x = torch.rand(3, 3, 16, 16)
    with torch.no_grad():  # and the file answers as it would at rest, by the statistics that it has learnt
        found = torch.export.load(tmp_path / "model.pt2").module()(x)
        torch.testing.assert_close(found, fresh.eval().float()(x), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [2e-5, float("nan")])
def test_a_file_that_differs_is_not_written(model, tmp_path, monkeypatch, wrong):
    def off(content: bytes):
        right = original(content)
        return lambda images: right(images) + np.float32(wrong if len(images) == 3 else 0)

    original = export_module.pt2_runner
    monkeypatch.setattr(export_module, "pt2_runner", off)
    with pytest.raises(MspcapsError, match=r"mspcaps_t_scale16.*(2.0e-05|nan).* 3"):
        export_model(model, tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_large_scores_may_differ_in_proportion():
    """Logits of 100 carry an error of fp32 of their own: 2e-5 is wrong for a capsule's length, not for them."""
    small, large = (seasoned("resnet20", img_size=16) for _ in range(2))
    with torch.no_grad():
        for parameter in [module for module in large.modules() if isinstance(module, torch.nn.Linear)][-1].parameters():
            parameter *= 300
    for module, allowed in ((small, False), (large, True)):
        about = describe(module)

        @torch.no_grad()
        def run(images: np.ndarray, module: torch.nn.Module = module) -> np.ndarray:
            return module(torch.from_numpy(images)).numpy() + np.float32(5e-5)

        if allowed:
            assert max(check_parity(module, about, run).values()) > 1e-5
        else:
            with pytest.raises(MspcapsError):
                check_parity(module, about, run)


@pytest.mark.slow
def test_int8(model, place, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx", reason=REASON)
    pytest.importorskip("onnxscript", reason=REASON)
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "pictures")
    made = export_model(model, "small.onnx", int8=True)  # by default what it was trained on
    assert made.metadata.precision == "int8" and made.agreement is not None
    file = onnx.load(made.path)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in file.graph.initializer}
    convolutions = [node for node in file.graph.node if node.op_type == "Conv"]
    makers = {name: node for node in file.graph.node for name in node.output}
    assert len(convolutions) == 4
    for node in convolutions:
        source = makers[node.input[1]]
        values, scales = (stored[name] for name in source.input[:2])
        assert source.op_type == "DequantizeLinear" and values.dtype == np.int8
        assert 60 <= np.abs(values.astype(int)).max() <= 64, "7 bits: products with 8 overflow where there is no VNNI"
        assert scales.shape == values.shape[:1], "each channel has a range of its own"
    # the agreement is what onnxruntime says about the very file
    held_out = load_for(model, "pictures", "test")
    found = scores(made.path, held_out.images.float() / 255).argmax(1)
    with torch.no_grad():
        expected = model(held_out.images.float() / 255).argmax(1).numpy()
    assert (made.agreement.same, made.agreement.images) == ((found == expected).sum(), len(held_out))
    assert (made.agreement.calibrated, made.agreement.data) == (16, "pictures")  # of 20: whole batches only
    assert len(held_out) == 12


@pytest.mark.slow
@pytest.mark.parametrize(("images", "count"), [(0, 16), (20, 16), (40, 32), (10**6, 48)])
def test_the_calibration_fits_into_memory(model, tmp_path, monkeypatch, images, count):
    """Its activations are kept: of as many images as there is room for, in whole batches, and of one batch at least."""
    draw(tmp_path / "pictures", count=32)
    monkeypatch.setattr(quantize, "MAX_CALIBRATION_BYTES", images * summarize(model).memory_bytes_per_image)
    seen, others = quantize.load_calibration(model, tmp_path / "pictures", lambda *progress: None)
    assert (len(seen), len(others)) == (count, 64 - len(load_for(model, tmp_path / "pictures", "train")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "pattern"),
    [
        (["model.bin"], r"model\.bin"),
        (["model.pt2", "--int8"], r"int8.*model\.onnx"),
        (["model.onnx", "--calibrate", "cifar10"], r"cifar10.*int8"),
        (["folder.onnx"], r"folder\.onnx"),
        (["plain/model.pt2"], r"plain/model\.pt2: (Not a directory|File exists)"),
        (["model.onnx", "--int8", "--calibrate", "nowhere/at/all"], r"nowhere/at/all"),
        (["model.onnx", "--int8", "--calibrate", "fashionmnist_sample"], r"'t-shirt'"),
    ],
)
def test_refusals(args, pattern, tmp_path, monkeypatch, capsys):
    if "--int8" in args:
        pytest.importorskip("onnxscript", reason=REASON)
    monkeypatch.chdir(tmp_path)
    path = weights(tmp_path / "model.safetensors")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "plain").write_text("a file where a folder should be")
    before = set(tmp_path.rglob("*"))
    assert main(["export", str(path), *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and re.search(pattern, err), err
    assert set(tmp_path.rglob("*")) == before


def test_without_the_packages(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MspcapsError, match=r"mspcaps\[onnx\]"):
        export_model(model, tmp_path / "model.onnx")


def test_models_that_cannot_be_exported(tmp_path, monkeypatch):
    with pytest.raises(MspcapsError, match="Linear"):
        export_model(torch.nn.Linear(2, 2), tmp_path / "model.pt2")

    class Moody(Model):
        def forward_features(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

        def forward_head(self, features: torch.Tensor) -> torch.Tensor:
            return features[:, :10] if features.sum() > 0 else -features[:, :10]

    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_model
    def moody(task: Task) -> Moody:
        return Moody(task)

    with pytest.raises(MspcapsError, match="moody") as told:
        export_model(create_model("moody"), tmp_path / "model.pt2")
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(MemoryError), exporting("large"):
        raise MemoryError
