"""What a sweep begins, and how it ends: its budget, a stop, an error."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_trainer import CPU, entry_of, recipe_for

from mspcaps.training import Recipe, Trainer, ledger, sweep
from mspcaps.training.checkpoint import CHECKPOINT, run_folder
from mspcaps.training.sweep import Outcome, run_sweep


def quick(data: Path, **changes: object) -> Recipe:
    return recipe_for(data, **{"model": "mspcaps_t_scale16", "batch_size": 48, "epochs": 2} | changes)


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize(("budget", "state"), [(190.0, "left"), (1000.0, "done")])
def test_what_would_not_end_in_time_is_not_begun(
    budget: float, state: str, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run of another seed: two epochs of 100 seconds."""
    known = quick(tiny_npz)
    run = entry_of(known, seconds=ledger.Seconds(200.0, per_epoch=100.0))
    ledger.write_run(ledger.entry_path(tmp_path, known), run)
    monkeypatch.setattr(sweep, "_train_one", lambda recipe, *rest: Outcome(recipe, "done"))
    (found,) = run_sweep([quick(tiny_npz, seed=1)], CPU, budget, out=tmp_path, results=tmp_path, log=silent)
    assert found.state == state


def test_every_run_knows_when_the_budget_ends(tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float] = []

    class Late:
        def __init__(self, *args: Any, **options: Any) -> None:
            pass

        def run(self, *deadline: float) -> None:
            deadlines.extend(deadline)

    monkeypatch.setattr(sweep, "Trainer", Late)
    before = time.monotonic()
    found = run_sweep([quick(tiny_npz)], CPU, 1000.0, out=tmp_path, results=tmp_path, log=silent)
    assert [outcome.state for outcome in found] == ["stopped"]
    assert len(deadlines) == 1 and before + 1000 <= deadlines[0] <= time.monotonic() + 1000


def test_after_a_stop_nothing_is_begun(tiny_npz: Path, tmp_path: Path) -> None:
    stop, runs = threading.Event(), [quick(tiny_npz, seed=seed) for seed in range(3)]

    def listener(trainer: Trainer) -> None:
        stop.set()

    found = run_sweep(runs, CPU, out=tmp_path, results=tmp_path, log=silent, listener=listener, stop=stop)
    assert [(o.recipe.seed, o.state) for o in found] == [(0, "stopped"), (1, "left"), (2, "left")]
    assert [path.parent for path in tmp_path.rglob(CHECKPOINT)] == [run_folder(tmp_path, runs[0])]


def test_an_error_in_the_sweep_itself_stops_the_runs_that_go_on(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a second Ctrl-C: the run beside it saves its checkpoint instead of going on for hours."""
    monkeypatch.setattr(sweep, "share_of_device", lambda recipe, device: 0.5)
    long, broken = quick(tiny_npz, epochs=100), quick(tiny_npz, seed=1)
    path = run_folder(tmp_path, broken) / CHECKPOINT
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no tensors")

    def log(line: str) -> None:
        if "failed" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep([long, broken], CPU, out=tmp_path, results=tmp_path, log=log)
    assert (run_folder(tmp_path, long) / CHECKPOINT).is_file()
    assert ledger.find_run(tmp_path, long) is None
