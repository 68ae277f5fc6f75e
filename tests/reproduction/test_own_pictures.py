"""The study of the recipe for one's own images, on pictures small enough for seconds, and the tables it fills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mspcaps.data import load_dataset
from mspcaps.files import format_bytes, write_json
from mspcaps.pages import markdown_table
from mspcaps.training import list_runs, load_recipe
from mspcaps.training.sweep import run_sweep
from reproduction import own_pictures as tables
from reproduction.pages import render
from reproduction.studies import own_pictures as study


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in study.SETS:
        for label in ("dark", "light"):
            folder = tmp_path / "sets" / name / label
            folder.mkdir(parents=True)
            for n in range(12):
                pixels = generator.integers(0, 120, (20, 20, 3), dtype=np.uint8) + (120 if label == "light" else 0)
                Image.fromarray(pixels).save(folder / f"{n}.png")
    return tmp_path


def text_of(results: Path) -> str:
    grid = lambda heads, rows, left: markdown_table(heads, rows, range(left, len(heads)))  # noqa: E731
    return render("own_pictures.md.j2", {"own_pictures": tables.picture_values(results), "grid": grid})


@pytest.mark.slow
def test_from_folders_to_tables(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study.pack(place / "sets")
    packed, folder = load_dataset(study.PACKED / "emoji.npz", "test"), load_dataset(place / "sets" / "emoji", "test")
    assert np.array_equal(packed.images, folder.images) and packed.classes == folder.classes == ("dark", "light")
    own = load_recipe("pictures")
    quick = replace(own, epochs=1, model="mspcaps_t_scale16")
    monkeypatch.setattr("mspcaps.training.images.load_recipe", lambda name: quick)
    monkeypatch.setattr(tables, "load_recipe", lambda name: quick)
    monkeypatch.setattr(study, "SETTINGS", {"epochs": (1,), "lr": (1e-3, 2e-3), "flip": (False,)})
    monkeypatch.setattr(study, "COMPARED", (("mspcaps_t", ""), ("resnet20", "")))
    chosen, tested = study.choice(), study.measured(2)
    assert len(chosen) == 6 and len(tested) == 12
    assert all(recipe.held_out for recipe in chosen) and not any(recipe.held_out for recipe in tested)
    assert {recipe.batch_size for recipe in tested} == {2} and tested[0].name.startswith("pictures+")
    results = place / "results"
    assert "|" not in text_of(results), "there is nothing to tell yet"
    wanted = [recipe for recipe in chosen + tested if recipe.dataset != "stamps"]
    found = run_sweep(wanted, study.choose_device("cpu"), results=results / "pictures", log=lambda line: None)
    assert {one.state for one in found} == {"done"}
    values, runs = tables.picture_values(results), list_runs(results / "pictures")
    assert [row[0] for row in values["rows"]] == ["emoji", "icons"] and len(values["choice_rows"]) == 2
    for row in values["rows"]:
        for model, cell in (("mspcaps_t", row[3]), ("resnet20", row[5])):
            reached = [
                r.accuracy.last for r in runs if (r.dataset, r.model) == (row[0], model) and not r.recipe["held_out"]
            ]
            assert len(reached) == 2 and cell.startswith(f"{np.mean(reached):.2f} ± ") and cell.endswith("(n = 2)")
        assert row[4] == row[6] == "–"
    means = [float(row[-1]) for row in values["choice_rows"]]
    assert means == sorted(means, reverse=True) and "| emoji" in text_of(results)
    own = next(row for row in values["choice_rows"] if row[1] == f"{quick.lr:g}")
    assert values["behind"] == pytest.approx(means[0] - float(own[-1]), abs=0.011)
    assert values["rows"][0][-1] == "–"
    weighed = [
        study.train_once("mspcaps_t", study.PACKED / "emoji.npz", None),
        {"data": "emoji", "img_size": 32, "model": "resnet20", "peak_bytes": 7_000_000},
    ]
    write_json(results / "pictures" / tables.MEMORY, {"environment": {"device": "a CPU"}, "runs": weighed})
    ours, theirs = tables.picture_values(results)["rows"][0][-1].split(" / ")
    assert weighed[0]["img_size"] == 32 and 100e6 < weighed[0]["peak_bytes"] < 20e9
    assert ours == format_bytes(weighed[0]["peak_bytes"]) and theirs == "7.0 MB"


def test_the_recipe_is_one_of_those_compared() -> None:
    epochs, lr, flip = tables.setting_of(load_recipe("pictures").to_dict())
    assert epochs in study.SETTINGS["epochs"] and lr in study.SETTINGS["lr"] and flip in study.SETTINGS["flip"]
