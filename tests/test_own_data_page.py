"""docs/own_data.md on real pictures: its commands and its Python as written, with fewer epochs."""

import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from mspcaps.cli import main
from mspcaps.data import load_dataset
from mspcaps.report.run import MAX_IMAGES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "own_data.md").read_text(encoding="utf-8")
SKEWED = {"coat": 60, "pullover": 20, "shirt": 10}
EXPORTS = all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime")))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures of FashionMNIST as PNG files, many coats and few shirts, where the page says they are."""
    monkeypatch.chdir(tmp_path)
    data = load_dataset("fashionmnist_sample", "train")
    for name, count in SKEWED.items():
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        chosen = data.images[data.labels == data.classes.index(name)][:count, 0]
        for number, image in enumerate(chosen.numpy()):
            Image.fromarray(image).save(folder / f"{number:03d}.png")
    return tmp_path


def shortened(text: str) -> str:
    """Two epochs instead of twenty."""
    assert len(re.findall(r"(epochs[= ])20\b", text)) == 1
    return re.sub(r"(epochs[= ])20\b", r"\g<1>2", text)


@pytest.mark.slow
def test_commands_run_as_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: dict[str, str] = {}
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(shortened(line) if " train " in line else line)
        if "model.onnx" in words and not EXPORTS:
            continue
        if words[1] in ("train", "eval", "explain"):
            words += ["--device", "cpu"]
        assert (words[0], main(words[1:])) == ("mspcaps", 0), (line, capsys.readouterr().err)
        said[words[1]] = capsys.readouterr().out
    assert list(said) == ["train", "eval", "explain", *(["export", "predict"] if EXPORTS else [])]
    check_training(place, said["train"])
    assert all(re.search(rf"{name} +\d+( +([\d.]+|–)){{4}} ", said["eval"]) for name in SKEWED)
    assert re.search(r"mean over classes [\d.]+ %", said["eval"])
    assert list((place / "runs" / "explain").rglob("*.html"))
    assert (place / "runs/pictures/mspcaps_t/mine-seed0/index.html").is_file()
    assert f"{MAX_IMAGES:,} test pictures" in PAGE
    assert (place / "runs/eval/mspcaps_t-mine-seed0/pictures-test.html").is_file()
    if EXPORTS:
        assert len(said["predict"].splitlines()) == SKEWED["shirt"]
        assert re.match(r"pictures/shirt/000\.png: (coat|pullover|shirt) \d\.\d{3}, ", said["predict"])


def check_training(place: Path, said: str) -> None:
    (promised,) = re.findall(r"^    (starts from .*)$", PAGE, flags=re.MULTILINE)
    assert said.splitlines()[0] == promised
    entry = json.loads((place / "results/runs/pictures/mspcaps_t/mine-seed0.json").read_text())
    assert (entry["recipe"]["balance"], entry["recipe"]["init"]) == (True, "mspcaps_t.cifar10")
    assert entry["initial"]["transfer"] == promised


@pytest.mark.slow
def test_python_trains_the_same_as_the_command(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = blocks("python")
    names: dict[str, object] = {}
    no_gpu: Callable[[], bool] = lambda: False  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", no_gpu)
    exec(shortened(code), names)
    by_hand = json.loads((place / "results/runs/pictures/mspcaps_t/mine-seed0.json").read_text())
    (line,) = [line for line in "".join(blocks("sh")).splitlines() if " train " in line]
    assert main([*shlex.split(shortened(line))[1:], "--device", "cpu"]) == 0
    by_command = json.loads((place / "results/runs/pictures/mspcaps_t/mine-seed0.json").read_text())
    assert by_hand["recipe"] == by_command["recipe"]
    assert by_hand["curve"] == by_command["curve"]


def test_what_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).is_file(), target
