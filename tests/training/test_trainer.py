"""Runs are repeatable, resume bit for bit, and say what went wrong."""

import math
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from training_makers import bars

from mspcaps.data import Augmentation, ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, Task, create_model, load_model, register_model, registry
from mspcaps.models.summary import summarize
from mspcaps.training import Engine, Recipe, Trainer, device, evaluator, ledger, sweep, train, trainer
from mspcaps.training.device import choose_engine, compiler_works
from mspcaps.training.images import load_images
from mspcaps.training.job import expected_seconds, share_of_device
from mspcaps.training.ledger import Run
from mspcaps.training.loader import StreamingLoader
from mspcaps.training.step import compile_once
from mspcaps.training.sweep import run_sweep

CPU = torch.device("cpu")


def recipe_for(data: Path, **changes: object) -> Recipe:
    augment = Augmentation(2, True, 10)
    base = {
        "data": str(data),
        "name": "test",
        "epochs": 3,
        "batch_size": 16,
        "warmup_epochs": 1,
        "lr": 2e-3,
        "img_size": 16,
    }
    return Recipe(**base | {"augment": augment} | changes)  # type: ignore[arg-type]


def equal_files(a: Path, b: Path) -> bool:
    x, y = load_file(a), load_file(b)
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


@pytest.fixture(scope="module")
def finished(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path, Run]:
    folder = tmp_path_factory.mktemp("finished")
    result = train(recipe_for(tiny_npz), device="cpu", out=folder, results=folder / "results")
    return result.recipe, result.folder, result.run


def test_held_out_images_are_measured_on_and_never_trained_on(tiny_npz: Path, tmp_path: Path) -> None:
    whole, *_ = load_images(recipe_for(tiny_npz), CPU)
    kept, _, measured = load_images(recipe_for(tiny_npz, held_out=20, seed=1), CPU)
    again, *_ = load_images(recipe_for(tiny_npz, held_out=20, seed=2), CPU)
    assert len(measured) == 20 and torch.equal(kept.images, again.images), "the same images for every seed"
    pixels = sorted(tuple(image.flatten().tolist()) for image in [*kept.images, *measured.images])
    assert pixels == sorted(tuple(image.flatten().tolist()) for image in whole.images)
    run = train(recipe_for(tiny_npz, held_out=20, epochs=1), device="cpu", out=tmp_path, results=tmp_path / "r").run
    assert run.measured_on == "20 held-out training images" and run.accuracy.last % 5 == 0
    with pytest.raises(MspcapsError, match=r"held_out is 100000, but must lie between 1 and \d+: bars has \d+ images"):
        load_images(recipe_for(tiny_npz, held_out=100_000), CPU)


@pytest.mark.slow
def test_ledger_entry_tells_everything(finished: tuple[Recipe, Path, Run]) -> None:
    _, folder, run = finished
    path = folder.parent.parent.parent / "results" / "runs" / "bars" / "mspcaps_t" / "test-seed0.json"
    assert ledger.read_run(path) == run
    assert run.params == sum(p.numel() for p in load_model(folder / "last.safetensors").parameters())
    assert len(run.curve["loss"]) == 3 and run.accuracy.best == max(run.curve["accuracy"])
    assert run.recipe["augment"] == asdict(Augmentation(crop=2, flip=True, rotate=10))
    assert run.curve["loss"][-1] < run.curve["loss"][0]
    assert not (folder / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_one_seed_one_result_another_seed_another(
    finished: tuple[Recipe, Path, Run], tiny_npz: Path, tmp_path: Path
) -> None:
    again = train(recipe_for(tiny_npz), device="cpu", out=tmp_path, results=tmp_path)
    other = train(recipe_for(tiny_npz, seed=1), device="cpu", out=tmp_path, results=tmp_path)
    assert equal_files(again.folder / "last.safetensors", finished[1] / "last.safetensors")
    assert not equal_files(again.folder / "last.safetensors", other.folder / "last.safetensors")


def test_weights_file_gives_the_model_back(finished: tuple[Recipe, Path, Run], tiny_npz: Path) -> None:
    model = load_model(finished[1] / "last.safetensors")
    assert model.metadata["classes"] == ["0", "1", "2"]
    assert tuple(model.config["img_size"]) == (16, 16)
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 3)


KILLED = """
import multiprocessing, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_trainer import CPU, recipe_for
from mspcaps.training import Trainer

def work(folder):
    torch.set_num_threads(1)
    recipe = recipe_for({data!r}, model="mspcaps_t_scale16")
    Trainer(recipe, CPU, out=folder, results=folder, save_every=0.0).run()

def start(name):
    child = fork.Process(target=work, args=(Path({place!r}, name),))
    child.start()
    return child

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")  # the parent has computed nothing, so a fork is safe and quick
    begin, clean = time.monotonic(), start("clean")
    clean.join()
    whole, dice, kills, run, ended = time.monotonic() - begin, random.Random({seed}), 0, 0, False
    assert clean.exitcode == 0
    while kills < 20 or not ended:
        child = start(f"killed{{run}}")
        # much of a run passes between two kills, so that they hit all of it, writes included
        child.join(dice.uniform(0.05, 0.5) * whole if kills < 20 else None)
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills, ended = kills + 1, False
        else:  # this run is done
            assert child.exitcode == 0
            run, ended = run + 1, True
"""


@pytest.mark.slow
def test_killed_runs_resume_bit_for_bit(tiny_npz: Path, tmp_path: Path) -> None:
    """Twenty kills in all, over as many runs as that takes, with a checkpoint after every step."""
    seed = random.randrange(10**6)
    script = KILLED.format(tests=str(Path(__file__).parent), data=str(tiny_npz), place=str(tmp_path), seed=seed)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    run = Path("bars/mspcaps_t_scale16/test-seed0")
    for killed in (interrupted := sorted(tmp_path.glob("killed*"))):
        for name in ("last.safetensors", "best.safetensors"):
            assert equal_files(tmp_path / "clean" / run / name, killed / run / name), f"seed {seed}"
        assert not list((killed / run).glob("checkpoint*"))
    assert interrupted


@pytest.mark.slow
def test_streaming_equals_resident_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is streamed trains exactly like the same folder in memory, also if resumed in mid-epoch."""
    images, labels = bars(60, 20, 3)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "pictures" / f"c{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "pictures" / f"c{label}" / f"{i}.png")
    augment = Augmentation(2, True, 10, alternate_flip=True, cutout=4, mixup=0.4)
    recipe = recipe_for(tmp_path / "pictures", epochs=2, batch_size=8, augment=augment)
    resident = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: 0)
    streaming = Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b", save_every=0.0)
    assert isinstance(streaming.loader, StreamingLoader)

    def stop(trainer: Trainer) -> None:
        if (trainer.epoch, trainer.steps_done) == (1, 3):
            raise KeyboardInterrupt

    streaming.listener = stop
    with pytest.raises(KeyboardInterrupt):
        streaming.run()
    result = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    assert equal_files(resident.folder / "last.safetensors", result.folder / "last.safetensors")


def test_small_custom_pictures_are_enlarged(tiny_npz: Path, tmp_path: Path) -> None:
    trainer = Trainer(recipe_for(tiny_npz, img_size=None), CPU, out=tmp_path, results=tmp_path)
    assert trainer.loader.images.shape[2:] == (32, 32) and trainer.recipe.img_size == 32


@pytest.mark.slow
def test_deadline_keeps_a_checkpoint(finished: tuple[Recipe, Path, Run], tiny_npz: Path, tmp_path: Path) -> None:
    assert Trainer(recipe_for(tiny_npz), CPU, out=tmp_path, results=tmp_path).run(deadline=0.0) is None
    assert not list(tmp_path.rglob("*.json"))
    result = train(recipe_for(tiny_npz), device="cpu", out=tmp_path, results=tmp_path)
    assert equal_files(result.folder / "last.safetensors", finished[1] / "last.safetensors")


def test_checkpoint_of_another_recipe_is_refused(tiny_npz: Path, tmp_path: Path) -> None:
    Trainer(recipe_for(tiny_npz), CPU, out=tmp_path, results=tmp_path).run(deadline=0.0)
    with pytest.raises(MspcapsError, match="differs in lr"):
        train(recipe_for(tiny_npz, lr=1.0), device="cpu", out=tmp_path, results=tmp_path)


@pytest.mark.slow
def test_the_engine_compile_trains_the_same_and_resumes_bit_for_bit(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, epochs=2, model="mspcaps_t_scale16")
    if not compiler_works():
        pytest.skip("there is no C++ compiler")

    def run(engine: Engine, folder: str, deadline: float = math.inf) -> Any:
        return Trainer(recipe, CPU, engine, out=tmp_path / folder, results=tmp_path / folder).run(deadline)

    eager, whole = run("eager", "eager"), run("compile", "whole")
    assert run("compile", "halves", deadline=0.0) is None
    halves = run("compile", "halves")
    assert halves.run.engine == "compile"
    assert [row.loss for row in whole.history] == pytest.approx([row.loss for row in eager.history], rel=1e-3)
    assert equal_files(whole.folder / "last.safetensors", halves.folder / "last.safetensors")


def test_long_runs_on_a_cpu_are_compiled_if_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "compiler_works", lambda: True)
    assert choose_engine(None, CPU, images=300 * 50_000) == "compile"
    assert choose_engine(None, CPU, images=5 * 10_000) == "eager"
    assert choose_engine(None, CPU, 2, images=300 * 50_000) == "eager"
    for name, engine in (("mspcaps_t", "compile"), ("resnet20", "compile"), ("lacaps_t", "eager")):
        assert choose_engine(None, CPU, images=300 * 50_000, model=create_model(name)) == engine, name
    monkeypatch.setattr(device, "compiler_works", lambda: False)
    assert choose_engine(None, CPU, images=300 * 50_000) == "eager"
    for wrong in ("cudagraph", "captured"):
        with pytest.raises(MspcapsError, match=wrong):
            choose_engine(wrong, CPU)


def test_two_processes_do_not_train_in_one_folder(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, epochs=1)
    folder = tmp_path / recipe.run_path
    holder = "import sys, time; from pathlib import Path; from mspcaps.files import lock_folder\n"
    holder += "with lock_folder(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(
            MspcapsError, match=f"another process is training in {folder}: wait for it, or choose another"
        ):
            train(recipe, device="cpu", out=tmp_path, results=tmp_path)
        other.kill()
    assert train(recipe, device="cpu", out=tmp_path, results=tmp_path).run  # the lock ended with its process


def test_a_run_that_another_process_finishes_meanwhile_is_not_trained_again(tiny_npz: Path, tmp_path: Path) -> None:
    """Between the look at the ledger and the lock; the checkpoint that would replace initial weights is gone, too."""
    recipe = recipe_for(tiny_npz, epochs=1, model="mspcaps_t_scale16")
    late = Trainer(recipe, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    result = train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    with pytest.raises(MspcapsError, match=str(result.folder)):
        late.run()
    assert train(recipe, device="cpu", out=tmp_path, results=tmp_path).run == result.run


@pytest.mark.slow
def test_a_sweep_expects_less_of_a_run_that_has_begun(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, epochs=2)
    train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    whole = expected_seconds(recipe_for(tiny_npz, epochs=2, seed=1), CPU, tmp_path, tmp_path)
    Trainer(recipe_for(tiny_npz, epochs=2, seed=1), CPU, out=tmp_path, results=tmp_path).run(deadline=0.0)
    assert whole > 0
    assert expected_seconds(recipe_for(tiny_npz, epochs=2, seed=1), CPU, tmp_path, tmp_path) == pytest.approx(whole / 2)
    run = ledger.read_run(path := ledger.entry_path(tmp_path, recipe))
    slower = replace(run, seed=8, seconds=replace(run.seconds, per_epoch=3 * run.seconds.per_epoch))
    elsewhere = replace(run, seed=9, device="an abacus", seconds=ledger.Seconds(9e9, 9e9))
    attacks = run.recipe | {"adversary": {"kind": "pgd"}, "name": "robust", "validation": 9}
    robust = replace(run, recipe=attacks, seconds=ledger.Seconds(9e9, 9e9))
    for other in (slower, elsewhere, robust):
        ledger.write_run(path.with_name(other.path.name), other)
    path.with_name("odd.json").write_bytes(b"\xff")
    assert expected_seconds(recipe_for(tiny_npz, epochs=2, seed=2), CPU, tmp_path, tmp_path) == pytest.approx(3 * whole)


def test_the_ledger_says_when_the_package_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    package = tmp_path / "src" / "package" / "training"
    package.mkdir(parents=True)
    (package / "ledger.py").write_text("1")
    (tmp_path / "README.md").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    monkeypatch.setattr(ledger, "__file__", str(package / "ledger.py"))
    monkeypatch.delenv("MSPCAPS_COMMIT", raising=False)
    (tmp_path / "README.md").write_text("2")
    assert ledger.git_commit() == git("rev-parse", "HEAD")
    (package / "ledger.py").write_text("2")
    assert ledger.git_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_a_finished_run_is_not_overwritten_by_another(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, epochs=1)
    first = train(recipe, device="cpu", out=tmp_path, results=tmp_path)
    kept = (first.folder / "last.safetensors").read_bytes()
    with pytest.raises(MspcapsError, match=r"test-seed0.json.* differs in lr"):
        train(recipe_for(tiny_npz, epochs=1, lr=1e-5), device="cpu", out=tmp_path, results=tmp_path)
    other = tmp_path / "other" / tiny_npz.name
    other.parent.mkdir()
    shutil.copy(tiny_npz, other)
    with pytest.raises(MspcapsError, match="differs in data"):
        train(recipe_for(other, epochs=1), device="cpu", out=tmp_path, results=tmp_path)
    assert (first.folder / "last.safetensors").read_bytes() == kept
    again = tiny_npz.parent / ".." / tiny_npz.parent.name / tiny_npz.name  # the same file, spelled differently
    assert train(recipe_for(again, epochs=1), device="cpu", out=tmp_path, results=tmp_path).run == first.run


def test_a_trained_model_knows_its_classes(tiny_npz: Path, tmp_path: Path) -> None:
    result = train(recipe_for(tiny_npz, epochs=1), device="cpu", out=tmp_path, results=tmp_path)
    assert result.model.metadata == load_model(result.folder / "last.safetensors").metadata


def test_a_run_resumed_with_other_images_is_refused(tmp_path: Path) -> None:
    images, labels = bars(60, 20, 3)
    data = tmp_path / "bars.npz"
    np.savez(data, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    Trainer(recipe_for(data), CPU, out=tmp_path, results=tmp_path).run(deadline=0.0)
    np.savez(data, x_train=images[:48], y_train=labels[:48], x_test=images[:20], y_test=labels[:20])
    with pytest.raises(MspcapsError, match="written when there were 60 training images, but now there are 48"):
        train(recipe_for(data), device="cpu", out=tmp_path, results=tmp_path)


def test_streamed_files_that_are_not_pictures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, for training and test pictures."""
    images, labels = bars(60, 20, 3)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        for split in ("train", "test"):
            path = tmp_path / "pictures" / split / f"c{label}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
            if i % 20 == 0:
                path.write_bytes(b"<html>")
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: 0)
    with pytest.raises(MspcapsError, match=r"cannot read .*train/.* is not a PNG.*; and 3 more$"):
        Trainer(recipe_for(tmp_path / "pictures", batch_size=8), CPU, out=tmp_path, results=tmp_path)


def test_a_broken_picture_that_is_streamed_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = bars(60, 20, 3)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "pictures" / f"c{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path := tmp_path / "pictures" / f"c{label}" / f"{i}.png")
    path.write_bytes(path.read_bytes()[:-40])
    monkeypatch.setattr("mspcaps.training.images.free_bytes", lambda device: 0)
    with pytest.raises(MspcapsError) as caught:
        train(recipe_for(tmp_path / "pictures", batch_size=8), device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    assert str(caught.value) == f"cannot read {path}: the picture is broken (image file is truncated)"


def test_one_bad_checkpoint_does_not_end_a_sweep(tiny_npz: Path, tmp_path: Path) -> None:
    runs = [recipe_for(tiny_npz, epochs=1, seed=seed) for seed in range(3)]
    broken = tmp_path / runs[1].run_path / "checkpoint.safetensors"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no tensors")
    outcomes = run_sweep(runs, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    assert {o.recipe.seed: o.state for o in outcomes} == {0: "done", 1: "failed", 2: "done"}
    assert broken.read_bytes() == b"no tensors"


def test_nan_stops_the_run_with_a_sentence(tiny_npz: Path, tmp_path: Path) -> None:
    with pytest.raises(
        MspcapsError,
        match=r"not a finite number in epoch 1, by step \d of 6: .* of the model is no longer finite; an lr below ",
    ):
        train(recipe_for(tiny_npz, lr=1e30, warmup_epochs=0), device="cpu", out=tmp_path, results=tmp_path)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_sweep_skips_what_the_ledger_has_and_survives_a_failing_run(tiny_npz: Path, tmp_path: Path) -> None:
    runs = [
        recipe_for(tiny_npz, epochs=1),
        recipe_for(tiny_npz, epochs=1, batch_size=500, seed=5),
        recipe_for(tiny_npz, epochs=1, seed=1),
    ]
    first = run_sweep(runs[:1], CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    rest = run_sweep(runs * 2, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)  # each is named twice
    assert [o.state for o in first] == ["done"]
    assert sorted((o.recipe.seed, o.state) for o in rest) == [(0, "known"), (1, "done"), (5, "failed")]
    with pytest.raises(MspcapsError, match=r"test-seed0.json.* differs in lr"):
        run_sweep([recipe_for(tiny_npz, epochs=1, lr=1e-4)], CPU, out=tmp_path, results=tmp_path)
    with pytest.raises(MspcapsError, match="bars/mspcaps_t/test-seed0, but differ in lr"):
        run_sweep([*runs, recipe_for(tiny_npz, epochs=1, lr=1e-4)], CPU, out=tmp_path, results=tmp_path / "new")
    assert not (tmp_path / "new").exists(), "before the first of them"

    def crash(trainer: Trainer) -> None:
        if trainer.recipe.seed == 6:
            raise RuntimeError("not foreseen")

    more = [recipe_for(tiny_npz, epochs=1, seed=seed) for seed in (6, 7)]
    after = run_sweep(more, CPU, out=tmp_path, results=tmp_path, log=lambda line: None, listener=crash)
    assert [(o.state, o.detail.split(" in ")[0]) for o in after if o.recipe.seed == 6] == [
        ("failed", "RuntimeError: not foreseen")
    ]
    assert [o.state for o in after if o.recipe.seed == 7] == ["done"]
    assert [
        o.state for o in run_sweep([recipe_for(tiny_npz, seed=9)], CPU, budget=-1, out=tmp_path, results=tmp_path)
    ] == ["left"]


@pytest.mark.slow
def test_runs_side_by_side_start_from_the_weights_of_their_seeds(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads share one random state: without care, a run would draw the numbers of another."""

    def slow(*arguments: Any, **options: Any) -> nn.Module:
        time.sleep(0.05)  # long enough for the others to set their seeds
        return create_model(*arguments, **options)

    monkeypatch.setattr(trainer, "create_model", slow)
    runs = [recipe_for(tiny_npz, epochs=1, seed=seed) for seed in range(4)]
    for folder, share in (("alone", 1.0), ("together", 0.25)):
        monkeypatch.setattr(sweep, "share_of_device", lambda model, device, share=share: share)
        run_sweep(runs, CPU, out=tmp_path / folder, results=tmp_path / folder, log=lambda line: None)
    for run in runs:
        alone, together = (load_file(tmp_path / f / run.dataset / run.model / run.run_name / "last.safetensors")
                           for f in ("alone", "together"))  # fmt: skip
        assert all(torch.equal(alone[name], together[name]) for name in alone)
        entries = [ledger.read_run(ledger.entry_path(tmp_path / f, run)) for f in ("alone", "together")]
        assert [entry.seconds.side_by_side for entry in entries] == [1, 4]


@pytest.mark.slow
def test_no_more_runs_at_once_than_the_device_has_room_for(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "share_of_device", lambda model, device: 0.5)
    under_way: set[int] = set()
    most: list[int] = []
    two = threading.Barrier(2, timeout=60)

    def listener(trainer: Trainer) -> None:
        if trainer.epoch == 0 and trainer.steps_done == 1:
            under_way.add(trainer.recipe.seed)
            two.wait()  # two do run at once
            time.sleep(0.2)  # long enough for a third one to start, if it were allowed to
            most.append(len(under_way))
        elif trainer.epoch == 1:
            under_way.discard(trainer.recipe.seed)

    runs = [recipe_for(tiny_npz, epochs=1, batch_size=48, model="mspcaps_t_scale16", seed=seed) for seed in range(4)]
    done = run_sweep(runs, CPU, out=tmp_path, results=tmp_path, log=lambda line: None, listener=listener)
    assert [outcome.state for outcome in done] == ["done"] * 4
    assert max(most) == 2, "each takes half of the device"


def test_the_share_of_a_gpu_that_a_run_takes() -> None:
    """Four T fill it. Multiply-adds grow with the pixels: at 48 x 48 there are 2.25 times as many as at 32 x 32."""
    gpu, tiny = torch.device("cuda"), Recipe(model="mspcaps_t", data="cifar10")
    assert share_of_device(tiny, gpu) == share_of_device(replace(tiny, model="mspcaps_t_scale32"), gpu) == 0.25
    assert share_of_device(replace(tiny, img_size=96), gpu) == 1
    macs = summarize("mspcaps_t", img_size=32).macs
    assert share_of_device(replace(tiny, img_size=48), gpu) == pytest.approx(2.25 * macs / 160e6, rel=0.01)
    assert share_of_device(tiny, CPU) == 1
    for broken in ({"img_size": 4}, {"options": {"nothing": 1}}):  # fails alone, not with the whole sweep
        assert share_of_device(replace(tiny, **broken), gpu) == 1


def test_ctrl_c_in_the_compiler_is_not_a_failure(tiny_npz: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    trainer = Trainer(recipe_for(tiny_npz), CPU, out=tmp_path, results=tmp_path, stop=stop)

    def compiling() -> None:
        raise BackendCompilerFailed("inductor", RuntimeError("C++ compile error"), None)

    trainer.step.eager_step = compiling  # type: ignore[method-assign]
    with pytest.raises(BackendCompilerFailed):
        trainer.run()
    stop.set()
    assert trainer.run() is None


@pytest.mark.slow
def test_a_run_stopped_within_an_epoch_has_the_curve_of_one_that_was_not(tiny_npz: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    recipe = recipe_for(tiny_npz, epochs=2)

    def listener(trainer: Trainer) -> None:
        if trainer.epoch == 1 and trainer.steps_done == 2:
            stop.set()

    stopped = Trainer(recipe, CPU, out=tmp_path / "a", results=tmp_path / "a", listener=listener, stop=stop)
    assert stopped.run() is None and stopped.steps_done == 2
    resumed = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    whole = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    assert resumed.run.curve == whole.run.curve
    assert resumed.run.weights_sha256 == whole.run.weights_sha256, "equal weights, equal files"


def test_the_fp32_weights_are_stored(tiny_npz: Path, tmp_path: Path) -> None:
    """If the model computes in bf16, not its working copies."""
    result = train(recipe_for(tiny_npz, epochs=1, precision="bf16"), device="cpu", out=tmp_path, results=tmp_path)
    assert result.run.precision == "bf16"
    for which in ("last", "best"):
        stored = load_file(result.folder / f"{which}.safetensors")
        assert {t.dtype for t in stored.values()} == {torch.float32}
        assert all(torch.equal(tensor, stored[name]) for name, tensor in result.model.state_dict().items())
        assert not torch.equal(stored["routing.0.w2"], stored["routing.0.w2"].bfloat16().float())


def test_images_that_fill_up_the_last_batch_do_not_count() -> None:
    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, 0.0]).expand(len(x), 2)

        def routing_state(self, x: torch.Tensor) -> list[object]:
            return []

    images = ImageSet(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 0]), ("a", "b"), "x")
    assert evaluator.Evaluator(First(), images, CPU, "eager", None, batch=4).accuracy() == 80


def test_a_ledger_that_cannot_be_written_is_noticed_before_the_training(tiny_npz: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MspcapsError, match="cannot write the ledger to "):
        train(recipe_for(tiny_npz), device="cpu", out=tmp_path, results=tmp_path / "file" / "x")
    assert not list(tmp_path.rglob("*.safetensors"))


def entry_of(recipe: Recipe, **changes: Any) -> Run:
    """The entry of an imaginary run."""
    curve = {"loss": [0.5] * recipe.epochs, "accuracy": [80.0] * recipe.epochs}
    run = Run(
        model=recipe.model, params=1, dataset=recipe.dataset, recipe=recipe.to_dict(), seed=recipe.seed,
        epochs=recipe.epochs, accuracy=ledger.Accuracy(80.0, 80.0, 1), curve=curve, seconds=ledger.Seconds(1.0),
        device=ledger.device_name(CPU),
    )  # fmt: skip
    return replace(run, **changes)


def test_a_run_of_a_catalog_set_is_identified_by_its_whole_recipe(tmp_path: Path) -> None:
    """Including the data set's defaults: the same name with another augmentation is another run."""
    recipe = Recipe(data="cifar10")
    path = ledger.entry_path(tmp_path, recipe)
    assert ledger.find_run(tmp_path, recipe) is None
    ledger.write_run(path, entry_of(replace(recipe.resolve(), augment=Augmentation())))
    with pytest.raises(MspcapsError, match="differs in augment"):
        ledger.find_run(tmp_path, recipe)
    ledger.write_run(path, entry_of(recipe.resolve()))
    assert ledger.find_run(tmp_path, recipe) == entry_of(recipe.resolve())


class Head(Model):
    """A model of another kind."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.num_features = task.in_chans * task.img_size[0] * task.img_size[1]
        self.head = nn.Linear(self.num_features, task.num_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)


def test_a_model_that_cannot_be_trained_gets_a_sentence(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_model
    def with_a_spare(task: Task) -> Model:
        model = Head(task)
        model.add_module("decoder", nn.Linear(2, 2))
        return model

    with pytest.raises(MspcapsError, match=r"the loss does not depend on decoder\.weight: leave it out"):
        train(recipe_for(tiny_npz, model="with_a_spare"), device="cpu", out=tmp_path, results=tmp_path)


def test_what_the_compiler_refuses_gets_a_sentence() -> None:
    def unsteady(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(MspcapsError, match=r"^the model cannot be compiled: .+; train it with --engine eager$"):
        compile_once(unsteady)(torch.ones(2))
