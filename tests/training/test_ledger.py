"""The ledger: entries are read as they were written, and those that contradict themselves are refused."""

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer import Head, entry_of, recipe_for

from mspcaps.data import Augmentation
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, Task, load_model, register_model, registry
from mspcaps.training import Recipe, Stopped, list_runs, read_run, train
from mspcaps.training.ledger import REPEATS, entry_path, find_run, write_run


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    recipe = Recipe(data="svhn", epochs=2, options={"iterations": 3}).resolve()
    run = entry_of(recipe, images=9, commit="abc", options=recipe.options)
    write_run(path := entry_path(tmp_path, recipe), run)
    return path


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_written_is_read(entry: Path, tmp_path: Path) -> None:
    assert entry.relative_to(tmp_path).as_posix() == "runs/svhn/mspcaps_t/custom+epochs=2+iterations=3-seed0.json"
    run = read_run(entry)
    assert (run.name, run.options, run.images, run.commit) == (
        "custom+epochs=2+iterations=3",
        {"iterations": 3},
        9,
        "abc",
    )
    assert [run] == list_runs(tmp_path) and list_runs(tmp_path, REPEATS) == []
    assert asdict(run) == json.loads(entry.read_text()) | {"renamed_from": None}


def test_other_files_of_results_do_not_matter(entry: Path, tmp_path: Path) -> None:
    for stray in ("attacks/mspcaps_t/x.json", "bench/x.json", "runs/x.json", "runs/svhn/x.json", "a/b/c/d.json"):
        (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stray).write_text("{}")
    assert list_runs(tmp_path) == [read_run(entry)]
    with pytest.raises(MspcapsError, match="there is no ledger folder"):
        list_runs(tmp_path / "attacks")


def test_an_old_entry_is_read_with_defaults(entry: Path) -> None:
    old = json.loads(entry.read_text())
    for key in ("options", "images", "engine", "commit", "software", "provenance", "initial", "measured_on"):
        del old[key]
    for key in ("optimizer", "options", "schedule", "clip_grad", "lr_steps"):
        del old["recipe"][key]
    old["recipe"] |= {"initial_scale": {"votes": 2.0}}
    entry.write_text(json.dumps(old | {"form": "captured", "seconds": {"train": 3.0}}))
    run = read_run(entry)
    assert (run.images, run.commit, run.measured_on, run.seconds.side_by_side) == (None, None, "test", 1)
    assert run.recipe["optimizer"] == "adamw" and run.recipe["initial_scale"] == {"votes": 2.0} and run.options == {}


def test_fields_of_a_newer_version_are_ignored(entry: Path) -> None:
    run, content = read_run(entry), json.loads(entry.read_text())
    for table in (content, content["accuracy"], content["seconds"]):
        table["unheard_of"] = 1.0
    entry.write_text(json.dumps(content))
    assert read_run(entry) == run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": None}, "recipe"),
        ({"accuracy": {"last": 80.0}}, r"accuracy\.best"),
        ({"accuracy": {"last": 99.0, "best": 99.0, "best_epoch": 1}}, "accuracy"),
        ({"curve": {"loss": [1.0], "accuracy": [80.0]}}, "curve of 2 epochs"),
        ({"seed": "0"}, "seed is '0'"),
        ({"accuracy": {"last": "80", "best": 80.0, "best_epoch": 1}}, r"accuracy\.last is '80'"),
        ({"accuracy": {"last": 80.0, "best": 80.0, "best_epoch": "1"}}, r"accuracy\.best_epoch is '1'"),
        ({"seconds": {"train": None}}, r"seconds\.train is None"),
        ({"curve": {"loss": [1.0, "x"], "accuracy": [80.0, 80.0]}}, r"curve\.loss\[1\] is 'x'"),
        ({"curve": {"loss": [], "accuracy": []}}, "curve of 2 epochs"),
        ({"seed": 4}, r"iterations=3-seed4\.json"),
        ({"model": "mspcaps_l"}, "mspcaps_l"),
        ({"curve": {"loss": [1.0, None], "accuracy": [80.0, 80.0]}}, r"curve\.loss\[1\] is None"),
        ({"curve": {"loss": [1.0, 1.0], "accuracy": "good"}}, r"curve\.accuracy .*'good'"),
        ({"seconds": {"train": [3]}}, r"seconds\.train .*\[3\]"),
        ({"model": None}, "model is None"),
        ({"recipe": {"name": 3, "epochs": 2}}, r"recipe\.name is 3"),
        ({"images": "x"}, "images is 'x'"),
        ({"initial": []}, r"initial is \[\]"),
    ],
)
def test_bad_entries_get_a_sentence(changes: dict[str, Any], message: str, entry: Path) -> None:
    change(entry, **changes)
    with pytest.raises(MspcapsError, match=message):
        read_run(entry)
    entry.write_bytes(b"\xff")
    with pytest.raises(MspcapsError, match="ledger entry"):
        read_run(entry)


def test_a_finished_run_is_returned_and_a_repeat_goes_elsewhere(tiny_npz: Path, tmp_path: Path) -> None:
    recipe, lines = recipe_for(tiny_npz, epochs=1, model="mspcaps_t_scale16", batch_size=48), []
    places = {"device": "cpu", "results": tmp_path / "r"}
    first = train(recipe, out=tmp_path / "a", **places)
    again = train(recipe, out=tmp_path / "a", log=lines.append, **places)
    assert lines[0].startswith("already done: ") and again.run == first.run == find_run(tmp_path / "r", recipe)
    assert [(row.epoch, row.lr) for row in again.history] == [(row.epoch, row.lr) for row in first.history]
    assert again.recipe == first.recipe and again.history[0].loss == pytest.approx(first.history[0].loss, rel=1e-5)
    assert all(a.equal(b) for a, b in zip(again.model.parameters(), first.model.parameters(), strict=True))
    elsewhere = train(recipe, out=tmp_path / "b", log=lines.append, **places)
    assert list_runs(tmp_path / "r") == [first.run] and list_runs(tmp_path / "r", REPEATS) == [elsewhere.run]
    assert train(recipe, out=tmp_path / "b", **places).run == elsewhere.run, "its weights are those of the repeat"
    anew = train(recipe, out=tmp_path / "b", overwrite=True, **places)
    assert list_runs(tmp_path / "r") == [anew.run] and anew.run != first.run
    assert replace(anew.run, seconds=first.run.seconds) == first.run, "it computes the same"


def test_what_follows_from_the_images_is_compared_too(tiny_npz: Path, tmp_path: Path) -> None:
    """An edited recipe file that leaves a field out is another recipe, though the name is the same."""
    same = {"epochs": 1, "model": "mspcaps_t_scale16", "batch_size": 48}
    own = recipe_for(tiny_npz, img_size=40, augment=Augmentation(5), **same)
    run = train(own, device="cpu", out=tmp_path, results=tmp_path).run
    follows = replace(own, augment=None)
    assert find_run(tmp_path, follows) == run, "an eighth of 40 is the default"
    for changes in ({"img_size": None}, {"img_size": 48}, {"augment": Augmentation(4)}):
        with pytest.raises(MspcapsError, match=f"differs in {next(iter(changes))}"):
            find_run(tmp_path, replace(follows, **changes))
    gone = replace(own, data=str(tiny_npz.rename(tmp_path / tiny_npz.name)))
    (tmp_path / tiny_npz.name).rename(tiny_npz)
    entry = entry_path(tmp_path, own)
    change(entry, recipe=json.loads(entry.read_text())["recipe"] | {"data": gone.data})
    assert find_run(tmp_path, replace(gone, img_size=None)), "the images are gone"


@pytest.mark.slow
def test_a_repeat_that_was_interrupted_goes_on(tiny_npz: Path, tmp_path: Path) -> None:
    """Its best weights so far are not those of the finished run."""
    recipe = recipe_for(tiny_npz, model="mspcaps_t_scale16", batch_size=16, validation=20)
    places: dict[str, Any] = {"device": "cpu", "out": tmp_path, "results": tmp_path}
    first, stop = train(recipe, **places), threading.Event()
    for path in first.folder.iterdir():
        path.unlink()
    write_run(first_entry := entry_path(tmp_path, recipe), replace(first.run, weights_sha256="of another machine"))
    with pytest.raises(Stopped):
        train(recipe, stop=stop, listener=lambda trainer: trainer.epoch == 1 and stop.set(), **places)
    assert sorted(path.name for path in first.folder.iterdir()) == ["best.safetensors", "checkpoint.safetensors"]
    repeat = train(recipe, **places)
    assert repeat.run.curve == first.run.curve and list_runs(tmp_path, REPEATS) == [repeat.run]
    (first.folder / "checkpoint.safetensors").touch()
    write_run(first_entry, replace(first.run, weights_sha256=repeat.run.weights_sha256))
    assert train(recipe, **places).images is None, "killed after it was done, when only the checkpoint was left"


def test_options_of_the_family_reach_the_model(tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_model
    def scaled(task: Task, *, factor: float = 1.0) -> Model:
        model = Head(task)
        torch.nn.init.constant_(model.head.weight, factor)
        return model

    recipe = recipe_for(tiny_npz, epochs=1, model="scaled", lr=1e-30, min_lr=0.0, options={"factor": 3.0})
    result = train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    assert (
        result.run.options == result.run.recipe["options"] == {"factor": 3.0} and result.run == list_runs(tmp_path)[0]
    )
    again = load_model(result.weights)
    assert again.config["factor"] == 3.0 and again.metadata["recipe"]["options"] == {"factor": 3.0}
    assert again.head.weight.eq(3).all(), "the weights file says how to build it"
    with pytest.raises(MspcapsError, match="facter"):
        train(recipe.replace(options={"facter": 3.0}), device="cpu", out=tmp_path, results=tmp_path)
