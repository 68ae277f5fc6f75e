"""A sweep over worker processes and over a real Ray on this machine: every run once, whichever process is killed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from process_makers import environment

from mspcaps.errors import MspcapsError
from mspcaps.progress import Progress
from mspcaps.training import Recipe, sweep
from mspcaps.training.cluster import RayCluster
from mspcaps.training.job import Job, WorkerLost
from mspcaps.training.workers import Slot, WorkerProcess, find_slots

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install 'mspcaps[ray]'")
RECIPE = 'model = "fragile"\ndata = "{}"\nname = "tiny"\nepochs = {}\nbatch_size = 16\nimg_size = 16\n'
WAYS = [
    pytest.param(["--workers", "2"], id="workers"),
    pytest.param(["--ray"], id="ray", marks=needs_ray),
]


def write_sweep(place: Path, data: Path, runs: int, epochs: int) -> None:
    (place / "tiny.toml").write_text(RECIPE.format(data, epochs))
    (place / "sweep.toml").write_text(f'[[runs]]\nrecipe = "tiny.toml"\nseeds = {list(range(runs))}\n')


def command(*options: str) -> list[str]:
    start = [sys.executable, "-m", "mspcaps", "--import", "fragile_model", "sweep", "sweep.toml", "--device", "cpu"]
    return [*start, "--save-every", "0", *options]


def finish(place: Path, *options: str) -> str:
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(place)}
    done = subprocess.run(
        command(*options), cwd=place, env=environment() | quiet, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def entries(place: Path) -> dict[str, dict[str, Any]]:
    """Ledger entries by file, without their times."""
    assert not (place / "results" / "repeats").exists()
    contents = {path.name: json.loads(path.read_text()) for path in (place / "results" / "runs").rglob("*.json")}
    for entry in contents.values():
        del entry["seconds"]
    return contents


@pytest.fixture(scope="module")
def alone(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The ledger entries of three runs in one process."""
    place = tmp_path_factory.mktemp("alone")
    write_sweep(place, tiny_npz, runs=3, epochs=4)
    finish(place)
    return entries(place)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_costs_nothing(way: list[str], alone: dict[str, Any], tiny_npz: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of a run; it goes on from its checkpoint, and the ledger is that of one process."""
    write_sweep(tmp_path, tiny_npz, runs=3, epochs=4)
    (tmp_path / "fragile").touch()
    output = finish(tmp_path, *way)
    assert not (tmp_path / "fragile").exists() and "from its checkpoint" in output
    assert "3 done" in output
    assert len(alone) == 3 and entries(tmp_path) == alone
    assert not list(tmp_path.rglob("checkpoint.safetensors"))
    assert len((tmp_path / "trained").read_text().split()) == 4, "none was trained again but the one that was killed"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_twenty_runs_each_exactly_once(way: list[str], tiny_npz: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path, tiny_npz, runs=20, epochs=1)
    output = finish(tmp_path, *way)
    assert "20 done" in output and len(entries(tmp_path)) == 20
    trained = (tmp_path / "trained").read_text().split()
    assert len(trained) == 20 and len(set(trained)) == 2, "in two processes"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(["--workers", "2"], marks=pytest.mark.slow, id="workers"),
        pytest.param(["--ray"], marks=[needs_ray, pytest.mark.soak], id="ray"),
    ],
)
def test_ctrl_c_leaves_everything_resumable(way: list[str], tiny_npz: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path, tiny_npz, runs=3, epochs=9_000)
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command(*way), cwd=tmp_path, env=environment() | quiet, start_new_session=True, **pipes)
    while process.poll() is None and len(list(tmp_path.rglob("checkpoint.safetensors"))) < 2:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, out + err
    assert len(err.splitlines()) == 2 and err.endswith(" runs\n"), err
    assert out.count(" stopped: ") == 2 and len(list(tmp_path.rglob("checkpoint.safetensors"))) == 2
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and group_lives(process.pid):
        time.sleep(0.1)
    assert not group_lives(process.pid), "no process is left behind"


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert find_slots(gpu, None) == [Slot("cuda", "0"), Slot("cuda", "1"), Slot("cuda", "2")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert find_slots(gpu, None) == [Slot("cuda", "4"), Slot("cuda", "7")] and find_slots(gpu, 1) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,2,-1,5")  # CUDA stops at the first that is not a GPU
    assert [slot.gpu for slot in find_slots(gpu, None)] == ["4", "7", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert find_slots(cpu, None) == [] and len(find_slots(cpu, 3)) == 3
    for device, count in ((gpu, 3), (cpu, 0)):
        with pytest.raises(MspcapsError, match=str(count)):
            find_slots(device, count)


class FakeProcess:
    """A worker that ends as soon as `end` is set, and that closes its pipe on request."""

    def __init__(self, target: object, args: tuple[Connection, Slot]) -> None:
        self.pipe, self.end, self.exitcode = args[0], threading.Event(), -len(made)
        made.append(self)

    def start(self) -> None:
        if isinstance(self.pipe, Connection):
            self.pipe = Connection(os.dup(self.pipe.fileno()))

    def join(self, timeout: float | None = None) -> None:
        self.end.wait()


made: list[FakeProcess] = []


class FakeContext:
    Pipe, Process = staticmethod(Pipe), FakeProcess


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """The workers that are started."""
    made.clear()
    monkeypatch.setattr("mspcaps.training.workers.get_context", lambda kind: FakeContext)
    return made


def test_a_job_sent_right_after_a_worker_was_lost(workers: list[FakeProcess], tiny_npz: Path) -> None:
    """The lost worker is waited for, and its status is reported, not that of the worker that the job has started."""
    place, job = WorkerProcess(Slot("cpu"), Progress()), tiny_job(tiny_npz)
    lost = place.submit(job, 1.0)
    workers[0].pipe.close()
    while place.connection is not None:
        time.sleep(0.01)
    place.submit(job, 1.0)
    assert len(workers) == 2
    workers[0].end.set()
    with pytest.raises(WorkerLost, match="status 0"):
        lost.result(timeout=5)
    workers[1].pipe.close()
    workers[1].end.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_progress_that_cannot_be_shown_loses_no_run(
    error: type[Exception], workers: list[FakeProcess], tiny_npz: Path
) -> None:
    """Such as on a terminal that is gone: the pipe to the worker closes, so it saves its checkpoints."""

    class Broken(Progress):
        def update(self, *content: Any, **more: Any) -> None:
            raise error

    future = WorkerProcess(Slot("cpu"), Broken()).submit(tiny_job(tiny_npz), 1.0)
    (worker,) = workers
    worker.pipe.recv()
    worker.pipe.send((None, ("run", 1.0, 2.0, "", "")))
    with pytest.raises(EOFError):
        assert worker.pipe.poll(5.0), "the worker would wait forever"
        worker.pipe.recv()
    worker.end.set()
    assert isinstance(future.exception(timeout=5), WorkerLost)
    for listener in [thread for thread in threading.enumerate() if "(listen)" in thread.name]:
        listener.join(5.0)  # its exception belongs to this test, not to the next one


class FakeRef:
    future = staticmethod(Future)  # it never completes


class FakeRay(types.ModuleType):
    """The part of Ray that a cluster calls."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> None:
        pass

    def nodes(self) -> list[int]:
        return [0]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, function: object) -> Any:
        task = types.SimpleNamespace(remote=lambda *args: FakeRef())
        return types.SimpleNamespace(options=lambda **options: task)

    def cancel(self, ref: Any) -> None:
        self.calls.append(("cancel", ref))

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> None:
        self.calls.append(("wait", *refs))
        assert num_returns == len(refs) and timeout > 0

    def shutdown(self) -> None:
        self.calls.append(("shutdown", None))


def test_tasks_of_a_sweep_that_fails_save_before_ray_ends(monkeypatch: pytest.MonkeyPatch, tiny_npz: Path) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(KeyboardInterrupt), sweep.RunningJobs([RayCluster("cpu")]) as running:
        running.begin(tiny_job(tiny_npz), running.places[0], 1.0)
        raise KeyboardInterrupt
    assert [name for name, _ in ray.calls] == ["cancel", "wait", "shutdown"] and ray.calls[0][1] is ray.calls[1][1]


def tiny_job(data: Path) -> Job:
    return Job(Recipe(data=str(data)), Path("out"), Path("results"), deadline=0.0, module="")


def test_what_does_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MspcapsError, match="--workers"):
        sweep.choose_places("cpu", 2, True, Progress(), print)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MspcapsError, match="torchrun"):
        sweep.choose_places("cpu", None, False, Progress(), print)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MspcapsError, match=r"mspcaps\[ray\]"):
        sweep.choose_places("cpu", None, True, Progress(), print)
