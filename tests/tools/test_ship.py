"""`ship` on a small trained model: the file, its card, and everything that it refuses."""

import contextlib
import json

import pytest
import torch

from ledger_makers import enter, entry, shortened
from mspcaps import load_dataset
from mspcaps.data import Augmentation
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import evaluate
from mspcaps.files import sha256_of
from mspcaps.models import create_model, load_model, save_weights
from mspcaps.models import shipped as weights
from mspcaps.training import Recipe, ledger, load_recipe, train
from mspcaps.training.recipe import Adversary
from tools import ship

pytestmark = pytest.mark.slow  # the shared fixture takes seconds


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Weights, ledger entry and test images of a tiny model.

    Its weights are rounded to half precision: of 1,000 images, one that flips would cost 0.1 points, and whether one
    does depends on the CPU.
    """
    place = tmp_path_factory.mktemp("ship")
    recipe = Recipe(
        model="mspcaps_t_scale16", data="fashionmnist_sample", name="tiny", epochs=2, batch_size=100, lr=2e-3,
        warmup_epochs=0, img_size=12, augment=Augmentation(),
    )  # fmt: skip
    result = train(recipe, device="cpu", out=place / "runs", results=place / "results")
    entry = place / "results/runs/fashionmnist_sample/mspcaps_t_scale16/tiny-seed0.json"
    source, data = result.folder / "last.safetensors", load_dataset("fashionmnist_sample", "test", 12)
    model = load_model(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    save_weights(source, model, **model.metadata)
    stored = json.loads(entry.read_text()) | {"weights_sha256": sha256_of(source)}
    stored["accuracy"]["last"] = evaluate(model, data).accuracy
    entry.write_text(json.dumps(stored))
    return source, entry, data


def test_the_card_is_measured_from_the_very_file(run, tmp_path, monkeypatch):
    source, entry, data = run
    card = ship.ship(source, entry, data, folder=tmp_path)
    path = tmp_path / "mspcaps_t_scale16.fashionmnist_sample.safetensors"
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.with_suffix(".json").name, path.name]
    monkeypatch.setattr(weights, "weights_folder", lambda: tmp_path)
    assert weights.read_card(card.name) == card
    assert weights.pretrained_path(card.model, card.dataset) == path
    model = load_model(path)
    evaluation = evaluate(model, data)
    assert card.accuracy == pytest.approx(evaluation.accuracy)
    assert card.probe == evaluate(model, ship.probe(data)).predictions.tolist()
    assert card.reference == pytest.approx(evaluate(load_model(source), data).accuracy)
    assert card.test_images == 1000
    assert path.stat().st_size < 0.7 * source.stat().st_size
    assert torch.float16 in ship.dtypes(path)
    assert card.ledger == "results/runs/fashionmnist_sample/mspcaps_t_scale16/tiny-seed0.json"
    assert card.run_sha256 == json.loads(entry.read_text())["weights_sha256"]
    assert "Zalando" in card.licence
    assert card.provenance.startswith("The first 500 training")


def test_a_copy_in_half_precision_is_taken(run, tmp_path):
    source, entry, data = run
    ship.ship(source, entry, data, folder=tmp_path / "first")
    copy = next((tmp_path / "first").glob("*.safetensors"))
    card = ship.ship(copy, entry, data, folder=tmp_path / "second")
    assert card.reference == json.loads(entry.read_text())["accuracy"]["last"]
    assert card.reference_of == "the run itself, in fp32"


def test_weights_trained_against_an_adversary_say_so(tmp_path, monkeypatch):
    recipe = Recipe(
        model="mspcaps_t_scale16", data="fashionmnist_sample", name="tiny", epochs=1, batch_size=100, warmup_epochs=0,
        img_size=12, augment=Augmentation(), validation=100, adversary=Adversary(eps=8.0, steps=1),
    )  # fmt: skip
    result = train(recipe, device="cpu", out=tmp_path / "runs", results=tmp_path / "results")
    entry, data = ledger.entry_path(tmp_path / "results", recipe), load_dataset("fashionmnist_sample", "test", 12)
    monkeypatch.setattr(ship, "MAY_COST", 5.0)  # one image of a thousand is worth more than the limit
    card = ship.ship(result.weights, entry, data, folder=tmp_path / "shipped")
    assert card.name == "mspcaps_t_scale16.fashionmnist_sample-linf8"
    monkeypatch.setattr(weights, "weights_folder", lambda: tmp_path / "shipped")
    assert weights.list_pretrained() == [card.name] and weights.read_card(card.name) == card
    model = create_model("mspcaps_t_scale16", pretrained="fashionmnist_sample-linf8", in_chans=1, img_size=12)
    assert torch.equal(model.state_dict()["routing.0.w2"], load_model(card.name).state_dict()["routing.0.w2"])


def test_too_costly_a_half_is_refused_and_nothing_is_written(run, tmp_path, monkeypatch):
    source, entry, data = run

    def coarse(tensors, parameters):
        return {name: (8 * t).round() / 8 if name in parameters else t for name, t in tensors.items()}

    monkeypatch.setattr(ship, "halved", coarse)
    with pytest.raises(MspcapsError, match=r"half precision costs .* nothing was written"):
        ship.ship(source, entry, data, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_weights_are_refused(run, tmp_path):
    source, entry, data = run
    model = load_model(source)
    other = tmp_path / "other.safetensors"
    save_weights(other, model, **model.metadata | {"recipe": {"seed": 5}})
    with pytest.raises(MspcapsError, match="was not trained with the recipe in "):
        ship.ship(other, entry, data, folder=tmp_path)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    save_weights(other, model, **model.metadata)
    with pytest.raises(MspcapsError, match="its sha256 differs"):
        ship.ship(other, entry, data, folder=tmp_path)
    with torch.no_grad():
        next(model.parameters()).normal_()
    save_weights(other, model, {name: t.half() for name, t in model.state_dict().items()}, **model.metadata)
    with pytest.raises(MspcapsError, match="they are from another run"):
        ship.ship(other, entry, data, folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["other.safetensors"]


def test_part_of_a_test_set_is_refused(run, tmp_path):
    source, entry, data = run
    with pytest.raises(MspcapsError, match="1,000 images, not of 10 images of"):
        ship.ship(source, entry, data.subset(slice(10)), folder=tmp_path)


def test_data_of_ones_own_is_refused(run, tmp_path):
    source, entry, data = run
    own = tmp_path / "runs" / "pictures" / "mspcaps_t_scale16" / "tiny-seed0.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(json.loads(entry.read_text()) | {"dataset": "pictures"}))
    with pytest.raises(MspcapsError, match="is not in the catalog"):
        ship.ship(source, own, data, folder=tmp_path)


@pytest.mark.parametrize(
    ("accuracy", "original", "refusal"),
    [
        (90.3, True, None),  # it may be better by chance
        (89.96, True, None),
        (89.94, True, "half precision costs 0.06 points"),
        (90.19, False, None),
        (90.21, False, "they are from another run"),
        (89.79, False, "they are from another run"),
    ],
)
def test_half_precision_may_gain_but_not_cost_and_a_copy_must_be_of_the_run(accuracy, original, refusal, tmp_path):
    with pytest.raises(MspcapsError, match=refusal) if refusal else contextlib.nullcontext():
        ship.check_cost(accuracy, 90.0, "the same in fp32", original, tmp_path / "entry.json")


def test_every_family_that_fits_is_shipped_by_one_call(tmp_path, monkeypatch):
    """The first seed of each; large, untrained and missing ones are reported."""
    runs, results, asked = tmp_path / "runs", tmp_path / "results", []
    for model in ("capsnet", "idp_capsnet", "orthcaps_s"):
        for seed in (1, 0):
            enter(results, entry(f"paper/cifar10/{model}", [60.0, 80.0 + seed], seed))
    enter(results, shortened("paper/cifar10/orthcaps_d", 70.0, 45))
    for place in ("capsnet/paper-seed0", "idp_capsnet/paper-seed0", "orthcaps_d/paper+epochs=45-seed0"):
        (runs / "cifar10" / place).mkdir(parents=True)
        (runs / "cifar10" / place / "last.safetensors").touch()

    def shipped(weights, ledger_entry, data):
        assert weights.is_file() and ledger_entry.is_file()
        asked.append(f"{weights.parent.parent.name}/{weights.parent.name}")
        if "orthcaps_d" in asked[-1]:
            raise MspcapsError("half precision costs 1.00 points")
        return weights_card(accuracy=80.0, bytes=1_100_000)

    def weights_card(**known):
        return weights.Card(**dict.fromkeys(weights.Card.__dataclass_fields__) | known)

    monkeypatch.setattr(ship, "list_pretrained", list)
    monkeypatch.setattr(ship, "ship", shipped)
    outcomes = dict(ship.ship_families(runs, results, None))
    assert asked == ["idp_capsnet/paper-seed0", "orthcaps_d/paper+epochs=45-seed0"]
    assert "80.00 %" in outcomes["idp_capsnet"] and "1.00 points" in outcomes["orthcaps_d"]
    assert "MB" in outcomes["capsnet"] and outcomes["da_capsnet"] == "not trained yet"
    assert "last.safetensors" in outcomes["orthcaps_s"] and len(outcomes) == 14


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("paper/cifar10/mspcaps_t", "mspcaps_t.cifar10"),
        ("paper/cifar10/capsnet", "capsnet.cifar10"),
        ("own/cifar10/mspcaps_t", "mspcaps_t.cifar10-own"),
        ("fast/cifar10/mspcaps_t", "mspcaps_t.cifar10-fast"),
        ("robust/cifar10/mspcaps_t", "mspcaps_t.cifar10-linf8"),
        ("own/cifar10/lacaps_l", "lacaps_l.cifar10"),
        ("fast/cifar10/lacaps_t", "lacaps_t.cifar10-fast"),
    ],
)
def test_weights_of_every_kind_of_recipe_have_names_of_their_own(recipe: str, name: str) -> None:
    loaded = load_recipe(recipe)
    assert weights.shipped_name(loaded.model, loaded.dataset, loaded.to_dict()) == name
