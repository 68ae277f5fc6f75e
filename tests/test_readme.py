"""What the README tells people to type works: the quick commands are run as written, the long ones must parse.

Training runs by the README's own words but with fewer epochs; what needs the network or hours is checked up to there.
"""

import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
from PIL import Image

from mspcaps.cli import COMMANDS, DATA, main
from mspcaps.training import load_recipe

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LONG = ("mspcaps data get cifar10", "mspcaps train paper/", "mspcaps app")  # the network, hours, or until stopped


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))[:1] == [program]]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSPCAPS_DATA", str(tmp_path / "cache"))
    for name, count in (("cat", 5), ("dog", 18)):  # enough for a batch, few of what is explained
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(count):
            Image.effect_noise((40, 36), 40 + i).convert("RGB").save(tmp_path / "pictures" / name / f"{i}.jpg")
    return tmp_path


@pytest.mark.slow
def test_quick_commands_run_as_written(place, capsys):
    ran = 0
    for words in commands("mspcaps"):
        if " ".join(words).startswith(LONG):
            continue
        if "model.onnx" in words and not all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime"))):
            continue
        if "--epochs" in words:  # a tiny run
            words = [*words, "--device", "cpu"]
            words[words.index("--epochs") + 1] = "1"
        if words[1] == "attack":  # all attacks take a minute
            words = [*words, "--attacks", "fgsm", "pgd-3:log_odds"]
        if words[1] == "bench":  # the measurement itself takes minutes
            words = [*words, "--quick", "--batch-size", "4", "--device", "cpu"]
        assert main(words[1:]) == 0, (words, capsys.readouterr().err)
        ran += 1
    assert ran >= 7
    assert "cat" in capsys.readouterr().out


def test_the_run_is_called_what_the_readme_says(place):
    from mspcaps.cli.training import choose_recipe

    words = next(words for words in commands("mspcaps") if words[1:3] == ["train", "--data"])
    given = {key[2:].replace("-", "_"): value for key, value in zip(words[2::2], words[3::2], strict=True)}
    numbers = {key: int(value) if value.isdigit() else value for key, value in given.items()}
    recipe = choose_recipe(None, numbers)
    assert f"runs/{recipe.dataset}/{recipe.model}/{recipe.run_name}/last.safetensors" in README


@pytest.mark.parametrize("words", [w for w in commands("mspcaps") if " ".join(w).startswith(LONG)], ids=" ".join)
def test_long_commands_parse(words, capsys):
    assert main([*words[1:], "--help"]) == 0
    assert words[1] in COMMANDS
    if words[1] == "train":
        load_recipe(words[2])
        options = {word for word in words if word.startswith("--")}
        assert options <= set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    elif words[1] == "data":
        assert words[2] in DATA


@pytest.mark.slow
def test_python_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(code, {})
    assert 90 <= float(capsys.readouterr().out) <= 100, "FashionMNIST's weights on its first test images"


def test_what_it_points_to_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).is_file(), target
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {words[1] for words in commands("make")} <= targets


def test_public_api():
    import mspcaps

    for name in mspcaps.__all__:
        assert callable(getattr(mspcaps, name))
        assert f"mspcaps.{name}(" in README or name == "list_models"
    assert "mspcaps_t" in mspcaps.list_models("mspcaps_*")
    with pytest.raises(AttributeError, match="fly"):
        _ = mspcaps.fly


def test_create_model_from_weights(tmp_path):
    import mspcaps
    from mspcaps.errors import MspcapsError
    from mspcaps.models import save_weights

    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    model = mspcaps.create_model("mspcaps_t", num_classes=3, in_chans=1, img_size=(16, 20))
    save_weights(path, model)
    again = mspcaps.create_model("mspcaps_t", pretrained=path)
    x = torch.rand(2, 1, 16, 20)
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in again.state_dict().items())
    assert torch.allclose(again(x), model.eval()(x), atol=1e-6)  # its convolutions are laid out otherwise
    assert mspcaps.create_model("mspcaps_t", num_classes=3, img_size=(16, 20), pretrained=path)
    for other in ({"num_classes": 4}, {"img_size": (16, 16)}, {"in_chans": 3}):
        begun = mspcaps.create_model("mspcaps_t", pretrained=path, **other)
        assert {key: begun.config[key] for key in other} == other
        assert torch.equal(begun.backbone.blocks[0].rest[0].conv.weight, model.backbone.blocks[0].rest[0].conv.weight)
    with pytest.raises(MspcapsError, match="holds weights of mspcaps_t, not of mspcaps_l"):
        mspcaps.create_model("mspcaps_l", pretrained=path)


def test_the_metadata_of_the_wheel_says_who_and_what():
    """The same as CITATION.cff."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert all(f"- name: {author['name']}\n" in citation for author in project["authors"])
    assert f"version: {project['version']}\n" in citation and f"license: {project['license']}\n" in citation
    assert all(url in citation for url in project["urls"].values()), "no address that is stated nowhere"
    assert len(project["keywords"]) >= 5 and "Typing :: Typed" in project["classifiers"]
    assert not any(one.startswith("License ::") for one in project["classifiers"]), "the SPDX expression replaces them"


def test_the_description_of_the_wheel_is_readme_with_addresses(monkeypatch):
    """Package indexes do not show an image from a relative address. Hatchling itself is only where wheels are built."""
    plugin = types.ModuleType("hatchling.metadata.plugin.interface")
    plugin.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin", plugin.__name__):
        monkeypatch.setitem(sys.modules, name, plugin)
    description = runpy.run_path(str(ROOT / "hatch_build.py"))["Description"]()
    description.root = str(ROOT)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert config["project"]["dynamic"] == ["readme"] and "custom" in config["tool"]["hatch"]["metadata"]["hooks"]
    nowhere, source = {"urls": {}}, "https://example.org/us/mspcaps"
    description.update(nowhere)
    assert nowhere["readme"] == {"content-type": "text/markdown", "text": README}
    somewhere = {"urls": {"Source": source}}
    description.update(somewhere)
    found = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", somewhere["readme"]["text"])
    given = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", README)
    assert len(given) > 20 and sum(bool(image) for image, _ in given) >= 4
    for (image, target), (_, before) in zip(found, given, strict=True):
        place = f"{source}/{'raw' if image else 'blob'}/HEAD/"
        assert target == (before if before.startswith(("#", "https:")) else place + before)
