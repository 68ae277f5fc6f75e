"""The commands at work, on pictures small enough to take no time."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path

import pytest
from cli_makers import TINY, draw, trained

import mspcaps
from mspcaps.cli import COMMANDS
from mspcaps.cli.common import show_progress
from mspcaps.cli.training import changes_type, choose_recipe, parse_duration, parse_option
from mspcaps.data import Augmentation
from mspcaps.evaluation.shift_results import list_shifts
from mspcaps.evaluation.shifts import CHANGES
from mspcaps.files import format_bytes, sha256_of
from mspcaps.progress import Progress, clock
from mspcaps.training import Recipe, list_recipes


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waiting_threads_leave_the_cores_to_others_before_torch_is_there(given, expected):
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, sys, mspcaps.cli; mspcaps.cli.main(['-V'])"
    code += "; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | given, check=True)
    assert done.stdout.split()[2:] == [expected, "False"]


def test_every_field_of_the_recipe_can_be_changed():
    changes = changes_type()
    assert [f.name for f in fields(changes)] == [f.name for f in fields(Recipe)]
    (augment,) = (f.type for f in fields(changes) if f.name == "augment")
    assert [f.name for f in fields(augment)] == [f.name for f in fields(Augmentation)]
    recipe = choose_recipe("paper/cifar10/mspcaps_t", {"optimizer": "sgd", "lr_steps": (3,), "schedule": "steps"})
    assert recipe.name == "paper+lr_steps=3+optimizer=sgd+schedule=steps"


def test_options_of_the_family_on_the_command_line(place):
    assert dict(map(parse_option, ["iterations=3", "decoder=true", "kind=em"])) == {
        "iterations": 3, "decoder": True, "kind": "em",
    }  # fmt: skip
    (place / "own.toml").write_text("[options]\niterations = 3\npatch = 2\n")
    recipe = choose_recipe("own.toml", {"options": {"patch": 4}})
    assert recipe.options == {"iterations": 3, "patch": 4} and recipe.name == "own+patch=4"
    with pytest.raises(mspcaps.errors.MspcapsError, match="'patch'"):
        parse_option("patch")


@pytest.mark.parametrize("command", ["", *COMMANDS, "data list", "data get", "data verify"])
def test_help(command, say):
    spoken = say(*command.split(), "--help")
    assert spoken.status == 0
    assert f"usage: mspcaps {command}".strip() in spoken.out
    assert "None" not in spoken.out


@pytest.mark.parametrize("command", ["bench", "eval", "sweep"])
def test_the_help_of_an_option_breaks_only_at_the_edge(command, say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    text = say(command, "--help").out
    lines = inspect.getsource(COMMANDS[command]).partition("Args:")[2].partition('"""')[0].splitlines()
    pairs = [(a.split()[-1], b.split()[0]) for a, b in pairwise(lines) if b.startswith(12 * " ")]
    assert pairs and all(f"{end} {begin}" in text for end, begin in pairs)


def test_no_arguments_show_the_help(say):
    assert say().status == say("data").status == 0


@pytest.mark.slow
def test_from_a_folder_of_pictures_to_answers(say, place):
    draw(place / "pictures")
    spoken = say("train", "--data", "pictures", *TINY, "--augment.crop", 1, "--seed", 2, "--log-dir", "logs")
    assert spoken.status == 0, spoken.err
    run = "pictures/mspcaps_t_scale16/pictures+augment=crop1,flipFalse,rotate0.0+batch_size=4+epochs=1-seed2"
    weights = place / "runs" / run / "last.safetensors"
    assert weights.is_file()
    entry = json.loads((place / "results" / "runs" / f"{run}.json").read_text())
    assert entry["recipe"]["augment"] == asdict(Augmentation(crop=1))
    assert "epoch 1/1  100 %" in spoken.out
    assert f"{entry['accuracy']['last']:.2f} %" in spoken.out
    assert list((place / "logs" / run).glob("events*"))

    spoken = say("eval", weights)
    assert spoken.status == 0, spoken.err
    assert re.search(r"disc +1 +", spoken.out)
    assert f"accuracy {entry['accuracy']['last']:.2f} %" in spoken.out
    assert say("eval", weights, "--data", "pictures", "--split", "all", "--batch-size", 5).status == 0

    spoken = say("predict", weights, "pictures/disc/0.png", "pictures/square")
    assert spoken.status == 0
    assert len(spoken.out.splitlines()) == 7
    assert re.match(
        r"pictures/disc/0\.png: (disc|square) \d\.\d{3}, (disc|square) \d\.\d{3}$", spoken.out.splitlines()[0]
    )


@pytest.mark.slow
def test_a_run_that_is_done_is_not_trained_again_unawares(say, place):
    draw(place / "pictures")
    first = say("train", "--data", "pictures", *TINY)
    (weights,) = place.rglob("last.safetensors")
    written = weights.stat().st_mtime_ns
    again = say("train", "--data", "pictures", *TINY)
    assert again.status == 0 and str(weights.relative_to(place)) in again.out
    assert weights.stat().st_mtime_ns == written
    assert all(fact in first.out for fact in ("10 training", "2 test", "2 classes", "1 x 32 x 32", "mspcaps_t_scale16"))
    assert say("train", "--data", "pictures", *TINY, "--overwrite").status == 0
    assert weights.stat().st_mtime_ns > written


@pytest.mark.slow
def test_an_entry_of_the_ledger_outlives_the_same_run_made_elsewhere(say, place):
    """As for somebody who makes a published figure again in a clone: the ledger is there, the weights are not."""
    draw(place / "pictures")
    assert say("train", "--data", "pictures", *TINY).status == 0
    (entry,) = place.glob("results/runs/*/*/*.json")
    entry.write_text(entry.read_text().replace('"commit": ', '"commit": "published", "was": '))
    before = entry.read_bytes()
    spoken = say("train", "--data", "pictures", *TINY, "--out", "elsewhere")
    assert spoken.status == 0 and entry.read_bytes() == before
    last = json.loads(before)["accuracy"]["last"]
    assert f"{last:.2f} %" in spoken.out and "results/repeats" in spoken.out
    (repeated,) = place.glob("results/repeats/*/*/*.json")
    assert repeated.relative_to(place / "results/repeats") == entry.relative_to(place / "results/runs")
    made = repeated.stat().st_mtime_ns
    assert say("train", "--data", "pictures", *TINY, "--out", "elsewhere").status == 0
    assert repeated.stat().st_mtime_ns == made
    assert say("train", "--data", "pictures", *TINY, "--out", "elsewhere", "--overwrite").status == 0
    assert entry.read_bytes() != before


@pytest.mark.slow
def test_own_pictures_get_a_batch_that_fits(say, place):
    draw(place / "pictures", count=50)
    spoken = say("train", "--data", "pictures", "--model", "mspcaps_t_scale16", "--epochs", 1, "--device", "cpu")
    assert "pictures+batch_size=8+epochs=1-seed0" in spoken.out


@pytest.mark.slow
def test_one_change_of_the_augmentation_leaves_the_rest(say, place):
    draw(place / "pictures", size=48)
    for words, expected in (((), 6), (("--img-size", 32), 4)):
        assert say("train", "--data", "pictures", *TINY, *words, "--augment.flip").status == 0
        entry = json.loads(
            max(place.glob("results/runs/pictures/*/*.json"), key=lambda path: path.stat().st_mtime).read_text()
        )
        assert entry["recipe"]["augment"] == asdict(Augmentation(crop=expected, flip=True))


def test_the_name_of_a_model_gets_those_of_its_weights(say):
    assert "mspcaps_t.cifar10" in say("eval", "mspcaps_t").err


def test_version(say):
    assert say("--version").out == f"mspcaps {mspcaps.__version__}\n"


def test_eval_says_which_pictures_it_took(say, place):
    weights = trained(place / "w.safetensors")
    draw(place / "pictures")
    spoken = say("eval", weights, "--data", "pictures")
    assert f"{place / 'pictures'}, test: 2 images" in spoken.out and "--split all" in spoken.out
    assert "--split all" not in say("eval", weights, "--data", "pictures", "--split", "all").out
    assert f"{place / 'pictures'}, test: 2 images" in say("eval", weights).out
    (place / "pictures").rename(place / "elsewhere")
    assert "pictures" in say("eval", weights).err


@pytest.mark.slow
def test_eval_on_changed_pictures(say, place):
    weights = trained(place / "w.safetensors")
    draw(place / "pictures")
    spoken = say("eval", weights, "--data", "pictures", "--split", "all", "--shifts", "--images", 4)
    assert spoken.status == 0, spoken.err
    assert all(re.search(rf"^ {name} .*\d\.\d\d $", spoken.out, re.M) for name in CHANGES), spoken.out
    (entry,) = list_shifts(place / "results")
    assert entry.evaluation.n == 4 and entry.part and entry.weights_sha256 == sha256_of(weights)
    assert (place / "results" / entry.figure).is_file()
    say("eval", weights, "--shifts"), say("eval", weights, "--shifts", "--split", "train")
    names = {other.dataset: other.evaluation.n for other in list_shifts(place / "results")}
    assert names == {"pictures": 2, "pictures train": 10, "pictures all": 4}, "none replaces another"
    assert say("eval", weights, "--split", "all", "--images", 4).out.count("pictures, all: 4 images") == 1
    assert "--images is 13" in say("eval", weights, "--split", "all", "--images", 13).err


def test_eval_of_several_weights_is_an_ensemble(say, place):
    draw(place / "pictures")
    one, other = trained(place / "w.safetensors"), trained(place / "v.safetensors", "mspcaps_t_scale8")
    spoken = say("eval", one, other, "--data", "pictures")
    rows = [line.split() for line in spoken.out.splitlines() if "%" in line]
    assert [row[0] for row in rows] == [str(one), str(other), "ensemble"] and "test: 2 images" in spoken.out
    alone = say("eval", one, "--data", "pictures").out
    assert f"accuracy {rows[0][1]} %" in alone and f"loss {rows[0][5]}" in alone
    assert str(place / "none.safetensors") in say("eval", one, place / "none.safetensors").err


def test_long_work_without_a_terminal_gets_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("mspcaps.progress.time.monotonic", lambda: now[0])
    with show_progress() as progress:
        for now[0], done in ((0.0, 1), (1.0, 2), (6.0, 3), (7.0, 4)):
            progress.update("evaluating", done, 4)
        progress.update("short work", 4, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert "evaluating" in line and "75 %" in line


def test_sweep(say, place):
    draw(place / "pictures")
    recipe = 'model = "mspcaps_t_scale16"\ndata = "pictures"\nname = "own"\nepochs = 1\nbatch_size = 4\n'
    (place / "own.toml").write_text(recipe)
    (place / "sweep.toml").write_text('[[runs]]\nrecipe = "own.toml"\nseeds = [0, 1]\n')
    spoken = say("sweep", "sweep.toml", "--device", "cpu", "--budget", "9m")
    assert spoken.status == 0, spoken.err
    assert "2 done" in spoken.out
    assert "2 already in the ledger" in say("sweep", "sweep.toml", "--device", "cpu").out


def test_a_sweep_with_a_failure_says_so(say, place):
    (place / "own.toml").write_text('data = "nowhere.npz"\n')
    (place / "sweep.toml").write_text('[[runs]]\nrecipe = "own.toml"\n')
    spoken = say("sweep", "sweep.toml", "--device", "cpu")
    assert spoken.status == 1
    assert "nowhere.npz" in spoken.out


def test_lists(say):
    spoken = say("models", "mspcaps_t", "--in-chans", 1, "--img-size", 32, 32)
    assert re.search(r"mspcaps_t +343,744 ", spoken.out)
    spoken = say("models", "mspcaps_t_scale*", "--img-size", 12)
    assert "mspcaps_t_scale16" in spoken.out
    assert re.search("mspcaps_t_scale8: .*12 x 12", spoken.out)
    assert say("train", "--list").out.split() == list_recipes()
    spoken = say("data", "list")
    assert "`mspcaps data get cifar10`" in spoken.out
    assert re.search(r"fashionmnist_sample +10 +1 x 28 x 28 +5,000 \+ 1,000 +\d", spoken.out)
    assert "fashionmnist_sample" in say("data", "verify").out
    assert say("data", "get", "fashionmnist_sample").status == 0


def test_weights_that_do_not_fit_the_data(say, place):
    spoken = say("eval", trained(place / "model.safetensors"), "--data", "fashionmnist_sample")
    assert spoken.status == 2
    assert "t-shirt" in spoken.err


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)])
def test_a_signal_tells_how_to_resume(place, stop):
    draw(place / "pictures", count=40)
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-m", "mspcaps", "train", "--data", "pictures", *TINY, "--epochs", "10000"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    process.stdout.readline()  # the first line of progress: training is under way
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + stop
    (checkpoint,) = (place / "runs").rglob("checkpoint.safetensors")
    assert len(err.splitlines()) == 2 and str(checkpoint.parent.relative_to(place)) in err


@pytest.mark.slow
def test_ctrl_c_in_a_sweep_keeps_checkpoints(place):
    """It does not wait for runs that would take hours, and the same command goes on where they were."""
    draw(place / "pictures", count=40)
    recipe = f'model = "mspcaps_t_scale16"\ndata = "{place / "pictures"}"\nimg_size = 16\nepochs = 2000\n'
    (place / "long.toml").write_text(recipe + 'name = "long"\nbatch_size = 8\n')
    (place / "sweep.toml").write_text('[[runs]]\nrecipe = "long.toml"\n')
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-m", "mspcaps", "sweep", "sweep.toml"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    for kept in (0, 1):
        assert len(list(place.rglob("checkpoint.safetensors"))) == kept
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert "1 runs" in process.stdout.readline()
        while process.poll() is None and not (place / "runs").is_dir():  # made right before the first step
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert len(err.splitlines()) == 2 and err.endswith(" runs\n")
    assert len(list(place.rglob("checkpoint.safetensors"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "absent"), [(["--help"], "numpy"), (["train", "--help"], "torch"), (["train", "--list"], "torch")]
)
def test_help_comes_without_what_is_slow_to_import(args, absent):
    source = Path(__file__).parents[2] / "src"
    code = f"import sys; from mspcaps.cli import main; main({args}); sys.exit({absent!r} in sys.modules)"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{absent} was imported"
    assert time.monotonic() - began < 10


def test_small_words():
    rates = [Progress("images").per_second(rate) for rate in (1234.5, 12.3, 0.034)]
    assert rates == ["1,234 images/s", "12 images/s", "0.034 images/s"]
    assert [clock(s) for s in (9, 75, 3675)] == ["0:09", "1:15", "1:01:15"]
    assert [format_bytes(n) for n in (12, 1500, 692_000, 21_900_000)] == ["12 B", "1.5 kB", "692 kB", "21.9 MB"]
    assert [parse_duration(t) for t in ("90", "540s", "9m", "1.5h")] == [90, 540, 540, 5400]


def test_attack_prints_a_table_and_keeps_the_result(place, say):
    draw(place / "pictures")
    weights = trained(place / "w.safetensors")
    spoken = say(
        "attack", weights, "--data", "pictures", "--split", "all", "--eps", "8/255", "0.1", "--attacks", "fgsm",
        "bim-2:cw", "--images", "8", "--results", "out",
    )  # fmt: skip
    assert spoken.status == 0, spoken.err
    (path,) = place.glob("out/robustness/*.json")
    stored = json.loads(path.read_text())
    assert [curve["attack"] for curve in stored["curves"]] == ["fgsm", "bim"] and stored["images"] == 8
    shown = [f"{point['accuracy']:.2f} %" for curve in stored["curves"] for point in curve["points"]]
    assert all(cell in spoken.out for cell in shown) and "eps 8/255" in spoken.out and "eps 0.1" in spoken.out
    assert stored["environment"]["device"] and path.with_suffix(".svg").is_file()


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--eps", "-1/255"], "-0.0039"), (["--eps", "8/zero"], "8/zero"), (["--attacks", "pgd:hinge"], "hinge"),
        (["--attacks", "deepfool"], "deepfool"), (["--images", "0"], "0"),
    ],
)  # fmt: skip
def test_attacks_that_make_no_sense(options, value, place, say):
    draw(place / "pictures")
    weights = trained(place / "w.safetensors")
    spoken = say("attack", str(weights), "--data", "pictures", *options)
    assert spoken.status == 2 and value in spoken.err and spoken.err.count("\n") == 1
