"""--json and --csv: valid, with any names, under the keys that docs/formats.md lists; the pages of train and eval."""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli_makers import TINY, draw, trained
from PIL import Image

from mspcaps import create_model
from mspcaps.models import save_weights
from mspcaps.report import run
from tests.pages.html_checks import assert_self_contained

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
ODD = ('a "quoted", name', "line\nbreak", "Größe <b>&amp;", "=1+1")


def keys_of(value: Any) -> set[str]:
    """Of all objects inside, but for those of tables whose keys are names."""
    if isinstance(value, dict):
        return {*value} | {key for name, item in value.items() if name != "swapped" for key in keys_of(item)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


def documented(section: str) -> set[str]:
    text = re.search(rf"^## {section}$(.*?)^## ", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    assert text
    return {*re.findall(r"`(\w+)`", text[1])} - {"null", "test"}


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def odd(place) -> Path:
    """Weights of a model whose class names are hard to write, and pictures of all of them but the last."""
    draw(place / "odd", ODD[:3], count=3)
    model = create_model("mspcaps_t_scale16", num_classes=4, in_chans=1, img_size=16)
    save_weights(place / "odd.safetensors", model, classes=list(ODD), recipe={"data": "odd"})
    return place / "odd.safetensors"


def test_eval(say, odd):
    spoken = say("eval", odd, "--split", "all", "--json")
    assert spoken.status == 0, spoken.err
    found = strict(spoken.out)
    assert keys_of(found) == documented("eval") and spoken.out.isascii()
    assert [row["class"] for row in found["classes"]] == list(ODD) and found["classes"][3]["recall"] is None
    assert found["images"] == 9 == sum(map(sum, found["confusion"])) and Path(found["page"]).is_file()
    rows = rows_of(say("eval", odd, "--split", "all", "--csv", "--no-page").out)
    assert [row["class"] for row in rows] == list(ODD) and rows[3]["recall"] == "" and rows[3]["images"] == "0"
    for row, expected in zip(rows, found["classes"], strict=True):
        assert {key: float(text) for key, text in row.items() if key != "class" and text} == {
            key: value for key, value in expected.items() if key != "class" and value is not None
        }
    refused = say("eval", odd, "--csv", "--json")
    assert refused.status == 2 and refused.out == "" and "--csv" in refused.err
    assert say("eval", odd, "--shifts", "--json").status == 2


def test_eval_with_mirror_images_says_so_in_every_form(say, odd):
    plain, both = (strict(say("eval", odd, "--split", "all", "--json", *more).out) for more in ([], ["--flip"]))
    assert (plain["flip"], both["flip"]) == (False, True)
    assert plain["page"] != both["page"] and "mirror images" in Path(both["page"]).read_text()
    assert "mirror image" not in Path(plain["page"]).read_text()
    assert "mirror image" in say("eval", odd, "--split", "all", "--no-page", "--flip").out
    assert "mirror image" not in say("eval", odd, "--split", "all", "--no-page").out
    table = say("eval", odd, "--split", "all", "--no-page", "--flip", "--csv")
    assert "mirror image" in table.err and "mirror" not in table.out
    refused = say("eval", odd, "--split", "all", "--flip", "--shifts")
    assert refused.status == 2 and "--flip" in refused.err


def test_eval_of_an_ensemble(say, place):
    draw(place / "pictures")
    files = [trained(place / "w.safetensors"), trained(place / "v.safetensors", "mspcaps_t_scale8")]
    found = strict(say("eval", *files, "--json").out)
    assert found["weights"] == [one["weights"] for one in found["members"]] == [str(file) for file in files]
    assert Path(found["page"]).is_file() and keys_of(found) <= documented("eval")


def test_predict(say, odd, place):
    (place / "broken.png").write_bytes(b"no picture")
    strange = os.fsdecode(os.fsencode(place) + b"/\xff,\n.png")
    Image.new("L", (16, 16), 9).save(strange, "PNG")
    spoken = say("predict", odd, strange, "broken.png", "--top", 2, "--json")
    found = strict(spoken.out)
    assert spoken.status == 1 and keys_of(found) | {"rank"} == documented("predict")
    good, bad = found["pictures"]
    assert len(good["classes"]) == 2 and {one["class"] for one in good["classes"]} <= {*ODD} and good["error"] is None
    assert bad["classes"] == [] and "broken.png" in bad["error"]
    rows = rows_of(say("predict", odd, strange, "broken.png", "--top", 2, "--csv").out)
    assert [(row["rank"], row["class"]) for row in rows] == [
        *((str(rank), one["class"]) for rank, one in enumerate(good["classes"], start=1)), ("1", ""),
    ]  # fmt: skip
    assert [float(row["score"]) for row in rows[:2]] == [one["score"] for one in good["classes"]]
    good["path"].encode("utf-8")  # what was no valid name is one


@pytest.mark.slow
def test_models_and_report(say, place):
    found = strict(say("models", "mspcaps_t_scale*", "--img-size", 12, "--json").out)
    assert found["img_size"] == [12, 12]
    assert [row["model"] for row in found["models"]] == [
        row["model"] for row in rows_of(say("models", "mspcaps_t_scale*", "--img-size", 12, "--csv").out)
    ]
    shipped = strict(say("models", "--pretrained", "--json").out)
    assert keys_of(found) | keys_of(shipped) == documented("models") and len(shipped["weights"]) >= 5
    draw(place / "pictures")
    assert say("train", "--data", "pictures", *TINY, "--name", "mine").status == 0
    told = strict(say("report", "--json").out)
    assert keys_of(told) == documented("report") and told["runs"][0]["recipe"] == "mine"
    (row,) = rows_of(say("report", "--csv").out)
    assert float(row["last_mean"]) == told["recipes"][0]["last_mean"] and row["last_deviation"] == ""


@pytest.mark.slow
def test_the_code_of_the_page_runs(place, monkeypatch):
    monkeypatch.setattr("mspcaps.report.mistakes.MAX_EXPLAINED", 1)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S):
        exec(code, names)
    assert names["evaluation"].auc.min() > 0.9 and (place / "runs" / "page.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mspcaps_t_scale16", "resnet20"])
def test_train_and_eval_write_a_page(name, say, place):
    draw(place / "pictures")
    (place / "pictures" / "disc" / "notes.txt").touch()
    line = ["train", "--data", "pictures", *TINY, "--name", "mine", "--model", name]
    spoken = say(*line)
    page = place / "runs" / "pictures" / name / "mine-seed0" / "index.html"
    assert spoken.status == 0 and str(page) in spoken.out, spoken.err
    html = page.read_text()
    assert_self_contained(html)
    assert "1 .txt" in html and html.count('class="chart"') == 4 and f"mspcaps predict runs/pictures/{name}" in html
    assert str(page) in say(*line).out, "of a run that is done"
    weights = page.parent / "last.safetensors"
    place = Path("runs", "eval", f"{name}-mine-seed0", "pictures-test.html").resolve()
    assert str(place) in say("eval", weights).out and place.is_file()


def test_a_page_that_cannot_be_written_spoils_no_run(say, place, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug in the page\nand more")

    draw(place / "pictures")
    monkeypatch.setattr(run, "evaluate", fail)
    spoken = say("train", "--data", "pictures", *TINY, "--name", "mine")
    assert spoken.status == 0 and "a bug in the page" in spoken.err and "Traceback" not in spoken.err
    assert spoken.err.count("\n") == 1
    weights = place / "runs/pictures/mspcaps_t_scale16/mine-seed0/last.safetensors"
    (place / "blocked").touch()
    spoken = say("eval", weights, "--out", "blocked")
    assert spoken.status == 0 and "accuracy" in spoken.out and "blocked" in spoken.err


def test_held_out_images_keep_the_test_set_unseen(say, place, monkeypatch):
    """A run that measures on held-out training images gets a page about these."""
    draw(place / "pictures", count=12)
    seen = []
    monkeypatch.setattr(run, "sample_images", lambda images: seen.append(images) or images)
    say("train", "--data", "pictures", *TINY, "--name", "mine", "--held-out", 5)
    assert [len(images) for images in seen] == [5]
    assert "held-out images" in next(place.glob("runs/**/index.html")).read_text()
