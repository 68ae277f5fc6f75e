"""Every card that comes with the package is measured again; names and paths find what they mean."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import mspcaps
from mspcaps.cli import main
from mspcaps.data import ImageSet, is_cached
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import evaluate
from mspcaps.files import sha256_of
from mspcaps.models import load_model, save_weights
from mspcaps.models import shipped as weights
from mspcaps.models.shipped import Card
from mspcaps.training.ledger import read_run
from mspcaps.training.recipe import stored_recipe
from tools.ship import halved, probe

ROOT = Path(__file__).parents[2]
NAMES = weights.list_pretrained() or [pytest.param("", marks=pytest.mark.skip(reason="no weights are shipped"))]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_card_says_of_its_file(name):
    card = weights.read_card(name)
    path = weights.pretrained_path(card.model, card.dataset)
    assert card.name == name
    assert (path.stat().st_size, sha256_of(path)) == (card.bytes, card.sha256)
    model = load_model(path)
    assert sum(p.numel() for p in model.parameters()) == card.params
    assert model.config["name"] == card.model
    assert model.metadata["recipe"] == card.recipe
    assert card.reference - card.accuracy < 0.05, "what half precision may cost"
    if (ROOT / card.ledger).is_file():
        run = read_run(ROOT / card.ledger)
        assert (run.recipe, run.weights_sha256) == (stored_recipe(card.recipe), card.run_sha256)
        assert run.provenance == card.provenance


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_answer_as_their_card_says(name):
    """A hundred images, so that it is quick for the largest model; one may fall otherwise on another processor."""
    card = weights.read_card(name)
    data = "fashionmnist_sample" if card.dataset == "fashionmnist" else card.dataset  # the same images, always at hand
    if not is_cached(data):
        pytest.skip(f"{card.dataset} is not on this machine")
    model = load_model(name)
    images = probe(mspcaps.load_dataset(data, "test", tuple(model.config["img_size"])))
    answers = evaluate(model, images).predictions.tolist()
    assert sum(a != b for a, b in zip(answers, card.probe, strict=True)) <= 1


SCORES = {  # of one patterned image in float64, by the code that these weights were first shipped with
    "mspcaps_l.cifar10": [0.8037237, 0.1854146, 0.1202588, 0.1312229, 0.1614171, 0.1531744, 0.2119194, 0.0929872,
                          0.0960026, 0.0663229],
    "mspcaps_t.cifar10": [0.1998015, 0.9043273, 0.1979388, 0.4047913, 0.3869404, 0.2983128, 0.1811402, 0.4506368,
                          0.285819, 0.2867743],
    "mspcaps_t.fashionmnist": [0.0822213, 0.8816048, 0.0883965, 0.1603321, 0.0805882, 0.096553, 0.204325, 0.268313,
                               0.1701242, 0.1327738],
    "mspcaps_t.mnist": [0.1394575, 0.2485469, 0.190073, 0.1924778, 0.180435, 0.152541, 0.1673081, 0.2533232, 0.292009,
                        0.2599784],
    "mspcaps_t.svhn": [0.3980653, 0.2642712, 0.1615849, 0.0893586, 0.3505023, 0.0404142, 0.7792891, 0.2914016,
                       0.1541773, 0.164006],
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SCORES if name in weights.list_pretrained()])
def test_outputs_have_not_moved_since_the_weights_were_shipped(name):
    model = load_model(name).double()
    chans = model.in_chans
    x = (torch.arange(chans * 1024, dtype=torch.float64) * 7919 % 256 / 255).view(1, chans, 32, 32)
    with torch.no_grad():
        assert model(x)[0].tolist() == pytest.approx(SCORES[name], abs=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_the_accuracy_of_a_card_measured_again(name):
    card, model = weights.read_card(name), load_model(name)
    if not is_cached(card.dataset):
        pytest.skip(f"{card.dataset} is not on this machine")
    if card.params > 1e6 and "MSPCAPS_MEASURE" not in os.environ:
        pytest.skip("a large model takes minutes: set MSPCAPS_MEASURE=1 for it")
    found = evaluate(model, mspcaps.load_dataset(card.dataset, "test", tuple(model.config["img_size"])))
    assert found.n == card.test_images
    assert found.accuracy == pytest.approx(card.accuracy, abs=0.011), "one image in 10,000, on another processor"


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package with weights of a small model in it, that names disc and square."""
    torch.manual_seed(0)
    folder, name = tmp_path / "package", "mspcaps_t_scale16.mnist"
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=2, in_chans=1, img_size=16)
    path = folder / f"{name}.safetensors"
    save_weights(path, model, halved(model.state_dict(), {n for n, _ in model.named_parameters()}), classes=["a", "b"])
    card = Card(
        model="mspcaps_t_scale16", dataset="mnist", params=1234, bytes=path.stat().st_size, sha256=sha256_of(path),
        accuracy=88.5, test_images=10_000, measured_on="", reference=88.5, reference_of="", probe=[], recipe={},
        ledger="", run_sha256="", provenance="", licence="",
    )  # fmt: skip
    (folder / f"{name}.json").write_text(card.to_json())
    monkeypatch.setattr(weights, "weights_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_folder_called_like_the_data_does_not_hide_the_weights(shipped, tmp_path):
    (tmp_path / "mnist").mkdir()
    assert weights.find_weights("mspcaps_t_scale16", "mnist") == shipped


def test_by_name(shipped, capsys):
    name = "mspcaps_t_scale16.mnist"
    assert mspcaps.list_pretrained() == mspcaps.list_pretrained("*.mnist") == [name]
    assert mspcaps.list_pretrained("mspcaps_l*") == []
    x = torch.rand(3, 1, 16, 16)
    expected = load_model(shipped)(x)
    assert torch.equal(mspcaps.load_model(name)(x), expected)
    assert torch.equal(mspcaps.create_model("mspcaps_t_scale16", pretrained="mnist")(x), expected)
    assert torch.equal(mspcaps.create_model(name)(x), expected)
    assert torch.equal(mspcaps.create_model(name, pretrained=True)(x), expected)
    assert torch.equal(mspcaps.create_model("mspcaps_t_scale16", pretrained=True)(x), expected), "the only ones"
    assert torch.equal(mspcaps.create_model("mspcaps_t_scale16", pretrained=name)(x), expected)
    assert torch.equal(mspcaps.create_model("mspcaps_t_scale16", pretrained=str(shipped))(x), expected)
    begun = mspcaps.create_model("mspcaps_t_scale16", num_classes=10, pretrained="mnist")
    assert begun(x).shape == (3, 10) and torch.equal(begun.normalize.mean, load_model(shipped).normalize.mean)
    assert main(["models", "--pretrained"]) == main(["models", "mspcaps_t*", "--pretrained"]) == 0
    assert f"{name}  " in capsys.readouterr().out


def test_commands_take_names(shipped, tmp_path, capsys):
    import numpy as np

    np.savez(
        tmp_path / "d.npz", x_test=np.zeros((4, 16, 16), np.uint8), y_test=np.array([0, 1, 0, 1]), classes=["a", "b"]
    )
    assert main(["eval", "mspcaps_t_scale16.mnist", "--data", "d.npz"]) == 0, capsys.readouterr().err
    by_name = capsys.readouterr().out
    assert main(["eval", str(shipped), "--data", "d.npz"]) == 0
    assert capsys.readouterr().out == by_name
    from PIL import Image

    Image.new("L", (16, 16)).save("p.png")
    assert main(["predict", "mspcaps_t_scale16.mnist", "p.png"]) == 0
    assert capsys.readouterr().out.startswith("p.png: ")


def test_a_file_called_like_a_name(shipped, tmp_path):
    shutil.copy(shipped, tmp_path / "mspcaps_t_scale16.mnist")
    assert weights.weights_path("mspcaps_t_scale16.mnist") == shipped
    assert weights.weights_path("./mspcaps_t_scale16.mnist") == Path("mspcaps_t_scale16.mnist")
    assert weights.weights_path(Path("mspcaps_t_scale16.mnist")) == Path("mspcaps_t_scale16.mnist")


@pytest.mark.parametrize(
    ("model", "dataset", "sentence"),
    [
        ("mspcaps_t", "cifar10", "train it, or name a .safetensors file instead"),
        ("mspcaps_t_scale16", "mnits", "did you mean mspcaps_t_scale16.mnist?"),
        ("mspcaps_t", "flowers", "name a .safetensors file instead"),
    ],
)
def test_what_is_not_shipped(shipped, model, dataset, sentence):
    with pytest.raises(MspcapsError) as said:
        mspcaps.create_model(model, pretrained=dataset)
    assert sentence in str(said.value)
    with pytest.raises(MspcapsError) as said:
        mspcaps.load_model(f"{model}.{dataset}")
    assert sentence in str(said.value)


def test_no_weights_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(weights, "weights_folder", lambda: tmp_path)
    assert weights.list_pretrained() == []
    assert main(["models", "--pretrained"]) == 0
    assert "this version ships no weights" in capsys.readouterr().out
    assert main(["eval", "mspcaps_t.cifar10"]) == 2
    assert "(it ships none yet): train it, or name a .safetensors file instead" in capsys.readouterr().err
    assert main(["eval", "nowhere"]) == 2
    assert "there is no weights file nowhere" in capsys.readouterr().err


def test_damaged_weights_and_cards_are_refused(shipped):
    content = shipped.read_bytes()
    shipped.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(MspcapsError, match="is damaged"):
        mspcaps.create_model("mspcaps_t_scale16", pretrained="mnist")
    shipped.with_suffix(".json").write_text(json.dumps({"model": "x"}))
    with pytest.raises(MspcapsError, match="is not the card"):
        mspcaps.create_model("mspcaps_t_scale16", pretrained="mnist")


def test_a_card_survives_its_file(shipped):
    card = weights.read_card("mspcaps_t_scale16.mnist")
    assert Card(**json.loads(replace(card, probe=[1, 2]).to_json())) == Card(**{**asdict(card), "probe": [1, 2]})


def test_halved():
    tensors = {
        "w": torch.tensor([0.1, 3.0]),
        "big": torch.tensor([1e6]),
        "mean": torch.tensor([0.1]),
        "n": torch.tensor(7),
    }
    small = halved(tensors, {"w", "big"})
    assert {name: t.dtype for name, t in small.items()} == {
        "w": torch.float16, "big": torch.float32, "mean": torch.float32, "n": torch.int64,
    }  # fmt: skip
    assert torch.equal(small["big"], tensors["big"]), "65,504 is the largest half"


def test_probe_takes_the_first_of_each_class():
    labels = torch.tensor([1, 1, 0, 1, 0, 0])
    data = ImageSet(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), labels, ("a", "b"), "toy")
    assert probe(data, 2).images.flatten().tolist() == [0, 1, 2, 4]
    whole, sample = "fashionmnist", "fashionmnist_sample"
    if is_cached(whole):
        first, second = (probe(mspcaps.load_dataset(name, "test")) for name in (whole, sample))
        assert torch.equal(first.images, second.images), "so the sample can stand in for the whole set"
