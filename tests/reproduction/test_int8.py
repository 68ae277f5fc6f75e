"""int8 beside fp32: the figures are those of the very files, and docs/export.md says what was stored."""

import json
from pathlib import Path

import pytest
import torch

from mspcaps import create_model, evaluate, load_dataset, load_model
from mspcaps.bench.timing import Effort
from mspcaps.export import export_model as export
from mspcaps.files import sha256_of
from mspcaps.models import list_pretrained, read_card, save_weights
from reproduction.pages import render
from reproduction.studies import int8
from reproduction.studies.int8 import RESULT, measure
from reproduction.study_tables import BATCHES, int8_table

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_what_is_measured(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    data = load_dataset("fashionmnist_sample", "test", 16).subset(slice(200))
    monkeypatch.setattr(int8, "load_for", lambda model: data)
    files = []
    monkeypatch.setattr(
        int8, "export_model", lambda *args, **options: files.append(export(*args, **options)) or files[-1]
    )
    torch.manual_seed(0)
    model = create_model("mspcaps_t_scale16", in_chans=1, img_size=16)
    path = tmp_path / "w.safetensors"
    save_weights(path, model, classes=list(data.classes), recipe={"data": "fashionmnist_sample"})
    result = json.loads(json.dumps(measure([path], Effort(repeats=2, seconds=0.0, warmup=1))))
    entry = result["weights"][str(path)]
    assert (entry["weights_sha256"], entry["test_images"]) == (sha256_of(path), 200)
    assert entry["accuracy"]["fp32"] == pytest.approx(evaluate(load_model(path), data).accuracy, abs=0.1)
    assert entry["bytes"] == {file.metadata.precision: file.bytes for file in files}
    assert 0 <= entry["same"] <= 200 and abs(entry["accuracy"]["fp32"] - entry["accuracy"]["int8"]) <= (
        100 - entry["same"] / 2
    )
    for batch in BATCHES:
        times = entry["ms_per_image"][str(batch)]
        assert times["fp32"] > 0 and times["ratio"] == sorted(times["ratio"])
    block = render("int8.md.j2", {"int8": result, "int8_table": int8_table})
    assert f"| {entry['accuracy']['int8']:.2f} % |" in block and f"{100 - entry['same'] / 2:.2f} % of 200" in block


def test_what_is_stored_is_of_the_weights_that_are_shipped():
    assert list(STORED["weights"]) == list_pretrained("mspcaps_t.*"), "run `python -m reproduction.studies.int8`"
    for name, entry in STORED["weights"].items():
        card = read_card(name)
        assert (entry["weights_sha256"], entry["test_images"]) == (card.sha256, card.test_images)
        assert entry["accuracy"]["fp32"] == pytest.approx(card.accuracy, abs=0.05), "rounding turns an answer or two"
