"""Questions and answers without a browser, on the real pictures that come with the package."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from app_makers import weights
from hostile import noise, save
from PIL import Image

import mspcaps
from mspcaps.app import Changes, ModelStore, answer
from mspcaps.app.layout import head
from mspcaps.app.session import perturb, rotate
from mspcaps.app.store import file_title
from mspcaps.app.uploads import accept, decode_picture
from mspcaps.errors import MspcapsError
from mspcaps.models import read_card, save_weights
from mspcaps.pages import image_url, macro


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ModelStore:
    return ModelStore([weights(tmp_path_factory.mktemp("store") / "grey.safetensors")])


@pytest.fixture(scope="module")
def model(store):
    return store.model(store.names[0])


def test_samples_are_the_test_images_of_every_class(store, model):
    data = mspcaps.load_dataset("fashionmnist_sample", "test")
    samples = store.samples(store.names[0])
    assert [sample.title for sample in samples] == list(data.classes)
    for label, sample in enumerate(samples):
        first = data.images[(data.labels == label).nonzero()[0, 0]]
        assert np.array_equal(decode_picture(sample.picture, (32, 32), 1), first.numpy())


@pytest.mark.slow
def test_an_answer_says_what_the_model_says(store, model):
    for sample in store.samples(store.names[0])[:3]:
        found = answer(model, sample.picture)
        pixels = torch.from_numpy(decode_picture(sample.picture, (32, 32), 1))
        with torch.no_grad():
            scores = model(pixels[None] / 255)[0]
        assert found.label == model.metadata["classes"][int(scores.argmax())]
        assert list(found.presence.values()) == pytest.approx(scores.tolist(), abs=1e-5)
        assert f"<b>{found.label}</b>" in found.view and "untouched" not in found.view
        assert found.view.count('class="big"') == 4, "parts and heat of winner and runner-up"
        assert found.routing.count('class="tree"') == 2
        for html in (found.view, found.routing):
            assert not re.search(r"https?:|<script|url\(|nan", re.sub(r"base64,[^\"]*", "", html))


@pytest.mark.slow
def test_every_change_changes_something(store, model):
    picture = store.samples(store.names[0])[0].picture
    plain = answer(model, picture)
    for changes in (Changes(rotation=30), Changes(noise=20), Changes(fgsm=8), Changes(-90, 10, 4)):
        found = answer(model, picture, changes)
        assert found.presence != plain.presence and found.view != plain.view and found.routing != plain.routing
        assert re.search(r"For the untouched picture it (also )?said", found.view)
        assert answer(model, picture, changes) == found, "the same question has the same answer"


def test_rotation_is_clockwise_and_a_quarter_turn_is_exact():
    pixels = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    turned = Image.fromarray(pixels.permute(1, 2, 0).numpy()).rotate(-90)  # Pillow turns counter-clockwise
    wanted = torch.from_numpy(np.asarray(turned).copy()).permute(2, 0, 1)
    assert torch.allclose(rotate(pixels, 90)[0] * 255, wanted.float(), atol=1e-2)
    assert torch.equal(rotate(pixels, 0)[0], pixels / 255)


def test_noise_and_attack_keep_to_their_size(model):
    pixels = torch.full((1, 32, 32), 128, dtype=torch.uint8)
    noisy = perturb(model, pixels, Changes(noise=10)) * 255 - 128
    assert float(noisy.std()) == pytest.approx(10, rel=0.1) and abs(float(noisy.mean())) < 1
    louder = perturb(model, pixels, Changes(noise=20)) * 255 - 128
    assert torch.allclose(louder, 2 * noisy, atol=1e-2), "one noise, louder"
    attacked = perturb(model, pixels, Changes(fgsm=4)) * 255 - 128
    assert float(attacked.abs().max()) == pytest.approx(4, abs=1e-3)


@pytest.mark.parametrize("value", [None, "5", [], True, float("nan"), float("inf"), -1, 1e9, {"a": 1}, "x" * 10_000])
def test_numbers_that_are_none(value):
    with pytest.raises(MspcapsError, match=r"noise.* 0 to 64") as caught:
        Changes.from_request(rotation=0, noise=value, fgsm=0)
    assert len(str(caught.value)) < 100


@pytest.mark.slow
def test_models_without_a_tree_still_answer(tmp_path):
    paths = [weights(tmp_path / f"{name}.safetensors", name, "cifar10", 3) for name in ("resnet20", "mspcaps_t_dr")]
    store = ModelStore(paths)
    picture = accept(save(noise(), "PNG"))
    for name, couplings in zip(store.names[:2], (0, 2), strict=True):
        found = answer(store.model(name), picture, Changes(fgsm=2))
        assert found.view.count('class="big"') == 4, "parts and heat of winner and runner-up"
        assert 'class="tree"' not in found.routing and found.routing.count('class="couplings"') == couplings
        assert all(0 <= value <= 1 for value in found.presence.values())
    assert sum(answer(store.model(store.names[0]), picture).presence.values()) == pytest.approx(1, abs=1e-5)


def test_names_on_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MSPCAPS_DATA", str(tmp_path / "empty"))
    (tmp_path / "a").mkdir()
    one, two = weights(tmp_path / "w.safetensors"), weights(tmp_path / "a" / "w.safetensors")
    monkeypatch.setattr("mspcaps.app.store.list_pretrained", lambda: [])
    store = ModelStore([one, two, two])
    title = "mspcaps_t · FashionMNIST"
    assert store.names == [
        f"{title} · {tmp_path.name}/w.safetensors", f"{title} · a/w.safetensors", f"{title} · a/w.safetensors (2)",
    ]  # fmt: skip
    for wrong in ("x", None, 3, ["a"], "../../etc/passwd"):
        with pytest.raises(MspcapsError, match="no model"):
            store.model(wrong)
    with pytest.raises(MspcapsError, match="--weights"):
        ModelStore([])
    with pytest.raises(MspcapsError, match=r"absent\.safetensors"):
        ModelStore([tmp_path / "absent.safetensors"])
    assert (
        ModelStore([weights(tmp_path / "c.safetensors", data="cifar10", channels=3)]).samples(
            "mspcaps_t · CIFAR-10 · c.safetensors"
        )
        == []
    )


def test_weights_of_one_model_and_data_set_are_told_apart(monkeypatch):
    plain = read_card("mspcaps_t.cifar10")
    robust = replace(plain, recipe=plain.recipe | {"adversary": {"eps": 8.0}})
    monkeypatch.setattr("mspcaps.app.store.list_pretrained", lambda: ["mspcaps_t.cifar10", "mspcaps_t.cifar10-linf8"])
    monkeypatch.setattr("mspcaps.app.store.read_card", lambda name: robust if "-" in name else plain)
    assert ModelStore().names == ["mspcaps_t · CIFAR-10", "mspcaps_t · CIFAR-10-linf8"]


def test_a_file_is_named_by_as_much_of_its_path_as_tells_it_from_others():
    runs = [Path("runs/one/pics-seed0/last.safetensors"), Path("runs/two/pics-seed0/last.safetensors")]
    assert [file_title(run, runs) for run in runs] == [
        "one/pics-seed0/last.safetensors", "two/pics-seed0/last.safetensors",
    ]  # fmt: skip
    assert file_title(runs[0], runs[:1]) == "pics-seed0/last.safetensors", "last alone says nothing"
    assert file_title(Path("a/mine.safetensors"), [Path("a/mine.safetensors"), *runs]) == "mine.safetensors"


@pytest.mark.slow
def test_of_a_sample_the_answer_says_whether_it_is_right(store, model):
    name, other = store.names[0], accept(save(noise(), "PNG"))
    for sample in store.samples(name)[:3]:
        assert store.truth(name, sample.picture) == sample.title
        found = answer(model, sample.picture, truth=sample.title)
        kind = "right" if found.label == sample.title else "wrong"
        assert f'<b class="{kind}">It is “{sample.title}”: {kind}.</b>' in found.view
    assert store.truth(name, other) is None and "It is “" not in answer(model, other).view


@pytest.mark.slow
def test_the_heat_maps_say_what_full_colour_is(store, model):
    for picture in (store.samples(store.names[0])[0].picture, accept(save(noise(), "PNG"))):
        assert re.search(r"effect of [\d.e+-]+ on 4(&nbsp;| )×(&nbsp;| )4 pixels", answer(model, picture).view)


def test_two_channels_are_refused(tmp_path):
    path = tmp_path / "two.safetensors"
    save_weights(path, mspcaps.create_model("mspcaps_t", in_chans=2))
    with pytest.raises(MspcapsError, match="2 channels"):
        ModelStore([path])


def test_samples_of_a_folder(tmp_path):
    for name in ("disc", "square"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("L", (20, 20), 10 * i).save(tmp_path / "mine" / name / f"{i}.png")
    model = mspcaps.create_model("mspcaps_t", num_classes=2, in_chans=1)
    save_weights(tmp_path / "w.safetensors", model, classes=["disc", "square"], recipe={"data": str(tmp_path / "mine")})
    store = ModelStore([tmp_path / "w.safetensors"])
    assert [sample.title for sample in store.samples(store.names[0])] == ["disc", "square"]


def test_words_are_escaped(tmp_path):
    model = mspcaps.create_model("mspcaps_t", num_classes=2)
    model.metadata = {"classes": ["<b>x</b>", "a & b"]}
    found = answer(model.eval(), image_url(np.zeros((3, 8, 8), np.uint8)))
    assert "<b>x" not in found.view.replace("<b>&lt;b", "") and "<b>x" not in found.routing
    assert ">No &lt;i&gt;.<" in macro("app.html", "message")("no <i>")


def test_the_rules_of_our_pages_stay_inside_the_view():
    css = head().partition("</style>")[0]
    assert css.count("{") == css.count("}")
    outside = css[css.rindex(".gradio-container, ") :] + css[: css.index(".view {")]
    assert not re.search(r"^(svg|p|h1|section|\*)\b", outside, re.MULTILINE)
    assert "http" not in css and "@import" not in css and "url(" not in css
