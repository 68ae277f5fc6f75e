"""Broken pictures are refused, or left out, counted and named: by train, eval and predict alike."""

import json
import warnings
from pathlib import Path

import pytest
from cli_makers import TINY, draw, trained
from PIL import Image

import mspcaps
from mspcaps.errors import MspcapsError


@pytest.fixture
def pictures(place):
    """24 pictures, of which five of one class are broken: no pictures at all, and cut in the middle."""
    folder = draw(place / "pictures", count=12)
    for i in range(4):
        (folder / "disc" / f"{i}.png").write_bytes(b"nothing")
    Image.effect_noise((400, 400), 90).save(folder / "disc" / "4.jpg")
    whole = (folder / "disc" / "4.jpg").read_bytes()
    (folder / "disc" / "4.png").write_bytes(whole[: len(whole) // 2])
    (folder / "disc" / "4.jpg").unlink()
    return folder


def test_train(say, place, pictures):
    command = ["train", "--data", "pictures", *TINY, "--name", "mine"]
    refused = say(*command)
    assert refused.status == 2 and "pictures" in refused.err
    said = say(*command, "--skip-broken")
    assert said.status == 0, said.err
    left_out = [int(line.split()[1]) for line in said.out.splitlines() if "left out" in line]
    assert sum(left_out) == 5 and "disc/0.png" in said.out and "more" in said.out
    (page,) = (place / "runs").rglob("index.html")
    assert "disc/0.png" in page.read_text()
    (entry,) = (place / "results").glob("runs/*/*/*.json")
    known = json.loads(entry.read_text())
    assert known["recipe"]["skip_broken"] is True
    read = [int(word) for word in said.out.replace(",", "").split() if word.isdigit()]
    assert known["images"] in read and known["images"] < 24 - 5
    again = say(*command, "--skip-broken")
    assert again.status == 0 and "already done" in again.out, "the broken ones are not taken for removed ones"


@pytest.mark.slow
def test_eval_and_predict(say, place, pictures):
    weights = trained(place / "w.safetensors")
    assert say("eval", weights, "--data", "pictures", "--split", "all").status == 2
    said = say("eval", weights, "--data", "pictures", "--split", "all", "--skip-broken")
    assert said.status == 0 and "all: 19 images" in said.out
    assert "5 of 24" in said.err and "1.png" in said.err and "2 more" in said.err and said.err.count(".png") == 3
    document = json.loads(say("eval", weights, "--data", "pictures", "--split", "all", "--skip-broken", "--json").out)
    assert ["5 of 24" in sentence for sentence in document["notes"]] == [True]
    assert "5 of 24" in Path(document["page"]).read_text()
    both = say("eval", weights, weights, "--data", "pictures", "--split", "all", "--skip-broken")
    assert both.status == 0 and both.err.count("5 of 24") == 1
    assert say("predict", weights, "pictures").status == 1
    said = say("predict", weights, "pictures", "--skip-broken")
    assert said.status == 0 and len(said.out.splitlines()) == 19 and "5 of 24" in said.err
    nothing = say("predict", weights, "pictures/disc/0.png", "--skip-broken")
    assert (nothing.status, nothing.out) == (2, "") and "1 of 1" in nothing.err


def test_in_python(place, pictures):
    model = mspcaps.load_model(trained(place / "w.safetensors"))
    with pytest.raises(MspcapsError):
        mspcaps.evaluate(model, "pictures")
    with pytest.warns(UserWarning, match="disc"):
        found = mspcaps.evaluate(model, "pictures", skip_broken=True)
    with pytest.warns(UserWarning, match="5 of 24"):
        data = mspcaps.load_dataset("pictures", "all", skip_broken=True)
    assert len(data) == 19 and found.n < 24
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mspcaps.load_dataset(draw(place / "good"), "all", skip_broken=True)
