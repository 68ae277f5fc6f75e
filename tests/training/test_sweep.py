"""Which runs a sweep starts, and how it ends: its budget, a stop, an error."""

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from test_trainer import CPU, entry_of, recipe_for

from mspcaps.training import Recipe, Trainer, job, ledger, sweep
from mspcaps.training.checkpoint import CHECKPOINT
from mspcaps.training.job import Job, WorkerLost, train_job
from mspcaps.training.sweep import run_sweep


def quick(data: Path, **changes: object) -> Recipe:
    return recipe_for(data, **{"model": "mspcaps_t_scale16", "batch_size": 48, "epochs": 2} | changes)


def silent(line: str) -> None:
    pass


deadlines: list[float] = []


class Late:
    """A trainer that is told to stop at once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def run(self, *deadline: float) -> None:
        deadlines.extend(deadline)


@pytest.mark.parametrize(("budget", "state"), [(190.0, "left"), (1000.0, "stopped")])
def test_a_run_that_would_not_end_in_time_is_not_started(
    budget: float, state: str, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging by the run of another seed: two epochs of 100 seconds."""
    other = quick(tiny_npz)
    run = entry_of(other, seconds=ledger.Seconds(200.0, per_epoch=100.0))
    ledger.write_run(ledger.entry_path(tmp_path, other), run)
    monkeypatch.setattr(job, "Trainer", Late)
    (outcome,) = run_sweep([quick(tiny_npz, seed=1)], CPU, budget, out=tmp_path, results=tmp_path, log=silent)
    assert outcome.state == state


def test_every_run_knows_when_the_budget_ends(tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines.clear()
    monkeypatch.setattr(job, "Trainer", Late)
    before = time.monotonic()
    outcomes = run_sweep([quick(tiny_npz)], CPU, 1000.0, out=tmp_path, results=tmp_path, log=silent)
    assert [outcome.state for outcome in outcomes] == ["stopped"]
    assert len(deadlines) == 1 and before + 1000 <= deadlines[0] <= time.monotonic() + 1000


def test_after_a_stop_nothing_is_started(tiny_npz: Path, tmp_path: Path) -> None:
    stop, runs = threading.Event(), [quick(tiny_npz, seed=seed) for seed in range(3)]

    def listener(trainer: Trainer) -> None:
        stop.set()

    outcomes = run_sweep(runs, CPU, out=tmp_path, results=tmp_path, log=silent, listener=listener, stop=stop)
    assert [(o.recipe.seed, o.state) for o in outcomes] == [(0, "stopped"), (1, "left"), (2, "left")]
    assert [path.parent for path in tmp_path.rglob(CHECKPOINT)] == [tmp_path / runs[0].run_path]


def test_an_error_in_the_sweep_itself_stops_its_runs(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a second Ctrl-C: the other run saves its checkpoint instead of going on for hours."""
    monkeypatch.setattr(sweep, "share_of_device", lambda recipe, device: 0.5)
    long, broken = quick(tiny_npz, epochs=100), quick(tiny_npz, seed=1)
    path = tmp_path / broken.run_path / CHECKPOINT
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no tensors")

    def log(line: str) -> None:
        if "failed" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep([long, broken], CPU, out=tmp_path, results=tmp_path, log=log)
    assert (tmp_path / long.run_path / CHECKPOINT).is_file()
    assert ledger.find_run(tmp_path, long) is None


def test_a_model_that_another_process_cannot_import(tiny_npz: Path, tmp_path: Path) -> None:
    """The run fails like any other and says why."""
    for module, word in (("__main__", "script"), ("no_such_module", "no_such_module")):
        recipe = quick(tiny_npz, model="unheard_of")
        work = Job(recipe, tmp_path, tmp_path, deadline=time.time() + 100, module=module)
        outcome = train_job(work, CPU, lambda trainer: None, threading.Event())
        assert outcome.state == "failed" and word in outcome.detail


class Doomed:
    """A place whose worker is always lost."""

    capacity = 1.0
    closed: list[bool]

    def __init__(self) -> None:
        self.jobs, self.closed = 0, []

    def submit(self, job: Job, share: float) -> "Future[Any]":
        self.jobs += 1
        future: Future[Any] = Future()
        future.set_exception(WorkerLost("its worker ended with status -9"))
        return future

    def stop(self) -> None:
        pass

    def close(self, at_once: bool) -> None:
        self.closed.append(at_once)


def test_a_run_does_not_lose_workers_forever(tiny_npz: Path, tmp_path: Path) -> None:
    place = Doomed()
    outcomes = run_sweep([quick(tiny_npz)], CPU, out=tmp_path, results=tmp_path, log=silent, places=[place])
    assert [outcome.state for outcome in outcomes] == ["failed"] and "-9" in outcomes[0].detail
    assert place.jobs == 1 + sweep.MAX_LOSSES and place.closed == [False]


def test_the_least_loaded_place_is_next(tiny_npz: Path, tmp_path: Path) -> None:
    """Runs that could share a GPU get one each while there are enough."""
    places = [Doomed() for _ in range(3)]
    running = sweep.RunningJobs(places)
    work = Job(quick(tiny_npz), tmp_path, tmp_path, deadline=time.time() + 100, module="")
    for share in (0.5, 0.25, 0.5, 0.5, 0.25):
        place = running.place_for(share)
        assert place is not None
        running.begin(work, place, share)
    assert [place.jobs for place in places] == [2, 2, 1]
    assert running.place_for(0.75) is None and running.place_for(0.5) is places[2]
