"""docs/export.md tells what works: its commands run as written, its script runs without torch, no model is missing."""

import re
import shlex
from ast import literal_eval
from pathlib import Path

import pytest
import torch
from export_makers import draw, weights, without_torch
from PIL import Image

import mspcaps
from mspcaps.cli import main

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_commands_run_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights(tmp_path / "last.safetensors")
    draw(tmp_path / "pictures")
    ran = []
    for words in map(shlex.split, "".join(blocks("sh")).splitlines()):
        if words[1] == "bench":  # tests/test_readme.py runs it, shortened; it would take minutes
            words = [*words, "--help"]
        assert (words[0], main(words[1:])) == ("mspcaps", 0), (words, capsys.readouterr().err)
        ran.append(capsys.readouterr().out)
    assert len(ran) == 6
    assert ran[0].startswith("model.onnx: mspcaps_t_scale16, 2 classes, images of 3 x 16 x 20, fp32, ")
    assert re.search(r"in fp32: \d\.\de-\d\d at batch 1, \d\.\de-\d\d at batch 3, \d\.\de-\d\d at batch 8\n", ran[0])
    assert len(ran[1].splitlines()) == 16 and re.match(r"pictures/cat/00\.png: (cat|dog) \d\.\d{3}, ", ran[1])
    assert (tmp_path / "small.onnx").stat().st_size < (tmp_path / "model.onnx").stat().st_size
    told = r"for (\d+) of 12 test images of pictures \([\d.]+ %\); 16 of its training images set the ranges"
    assert re.search(told, ran[3]) and ", int8, " in ran[3]
    assert "12 images" in ran[4] and re.search(r"\naccuracy [\d.]+ % ", ran[4])
    check_script(tmp_path)


def check_script(place: Path) -> None:
    """The ten lines, where there is no torch, against the library."""
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line]) == 10 and "mspcaps" not in code
    (place / "ten_lines.py").write_text(code)
    Image.open(place / "pictures" / "dog" / "03.png").save(place / "picture.png")
    done = without_torch(place, "ten_lines.py")
    assert (done.returncode, done.stderr) == (0, "")
    score, name = literal_eval(done.stdout)
    (expected,) = mspcaps.predict(mspcaps.load_model(place / "last.safetensors"), place / "picture.png", top=1)
    assert expected.top == ((name, pytest.approx(score, abs=1e-5)),)


def test_the_hub_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"mspcaps": mspcaps, "model": mspcaps.create_model("mspcaps_t_scale16")}
    here = [line for line in blocks("python")[1].splitlines() if "push_to_hub" not in line]
    exec("\n".join(here), names)
    found = mspcaps.from_pretrained("folder").state_dict()
    assert all(torch.equal(tensor, found[key]) for key, tensor in names["model"].state_dict().items())


def test_no_model_is_missing_from_the_table():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, flags=re.MULTILINE))
    assert set(rows) == set(mspcaps.list_models()), "run `python -m tools.export_table` again"
    for name, row in rows.items():
        cells = row.split(" | ")
        if "not as" not in row:
            assert all(float(cell) <= 1e-5 for cell in cells[1:5]), name
