"""docs/scale.md: every command runs as written, on a CPU, with a real Ray of this machine; its estimate adds up."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspcaps.training.ledger import list_runs
from reproduction import paper
from reproduction.scale import estimate, imagenet_rows, message_seconds

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
ON_RAY = [line for line in COMMANDS if "ray" in line]
SOURCE = Path(__file__).parents[1] / "src"
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install 'mspcaps[ray]'")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The two files of the page, with less to train."""
    images, labels = np.random.default_rng(0).integers(0, 255, (48, 16, 16)).astype(np.uint8), np.arange(48) % 3
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        name = text.partition("\n")[0].removeprefix("# ")
        less = {
            '"mspcaps_t"': '"mspcaps_t_scale32"',
            '"fashionmnist_sample"': '"few.npz"',
            "= 30": "= 1\nbatch_size = 16",
        }
        for old, new in less.items():
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    assert {path.name for path in tmp_path.glob("*.toml")} == {"mine.toml", "seeds.toml"}
    return tmp_path


def variables(place: Path) -> dict[str, str]:
    """Of a shell that finds what is installed beside this Python, and this mspcaps."""
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join([str(SOURCE), *(path for path in sys.path if path)])
    return os.environ | quiet | {"PATH": found, "PYTHONPATH": paths}


def run(command: str, place: Path) -> set[int]:
    """-> the seeds that the ledger has afterwards."""
    done = subprocess.run(
        command, shell=True, cwd=place, env=variables(place), capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {run.seed for run in list_runs(place / "results")}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in ON_RAY])
def test_a_command_runs_as_written(command: str, place: Path) -> None:
    assert run(command, place) == ({1, 2, 3} if "sweep" in command else {4} if "--seed 4" in command else {0})


@needs_ray
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_ray_runs_as_written(place: Path) -> None:
    assert run(ON_RAY[0], place) == {1, 2, 3}


@needs_ray
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_cluster_is_joined_as_written(place: Path) -> None:
    """Two machines, which are this one, with a core each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    head, join, sweep = (line.replace("6379", port).replace("HEAD", "127.0.0.1") for line in ON_RAY[1:])
    machines = []
    try:
        for line in (head, join):
            command = [*line.split(), "--num-cpus", "1", "--temp-dir", f"/tmp/ray-{port}"][
                : None if line is head else -2
            ]
            machines.append(subprocess.Popen(command, cwd=place, env=variables(place), stdout=subprocess.DEVNULL))
            wait_for_port(int(port), machines[-1])
        deadline = time.monotonic() + 100
        while "2 machines" not in (said := status(port, place)) and time.monotonic() < deadline:
            time.sleep(1.0)
        assert "2 machines" in said, said
        assert run(sweep, place) == {1, 2, 3}
    finally:
        for machine in reversed(machines):
            machine.terminate()
            machine.wait(timeout=60)
        shutil.rmtree(f"/tmp/ray-{port}", ignore_errors=True)


def wait_for_port(port: int, process: subprocess.Popen[Any]) -> None:
    for _ in range(600):
        assert process.poll() is None
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("Ray did not start")


def status(port: str, place: Path) -> str:
    code = (
        f"import ray; ray.init('127.0.0.1:{port}', logging_level='ERROR'); "
        "print(sum(node['Alive'] for node in ray.nodes()), 'machines')"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=place, env=variables(place), capture_output=True, text=True).stdout


def test_the_estimate_is_arithmetic() -> None:
    """By hand: 8 GPUs send 7/8 of the bytes twice over links of 315 GB/s; 8 machines then an eighth, at 35 GB/s."""
    links = paper.read_toml("scale.toml")
    assert message_seconds(1e9, 1, links) == 0
    inside = 2 * 7 / 8 * 1e9 / 315e9 + 20e-6
    assert message_seconds(1e9, 8, links) == pytest.approx(inside)
    assert message_seconds(1e9, 64, links) == pytest.approx(inside + 2 * 7 / 8 * 0.125e9 / 35e9 + 60e-6)
    assert message_seconds(0, 8, links) == pytest.approx(20e-6)
    variant = {"params": 10**6, "ms_per_step": {"median": 1.0}, "tflops": 100.0}
    result = {"model": "mspcaps_t", "batch_size": 100, "variants": {"ours": variant}}
    one = estimate(result, 8, links)
    message = 2 * 7 / 8 * 4e6 / 315e9 + 20e-6
    assert one.rate == pytest.approx(800 / (1e-3 + message)) and one.synchronised is None
    measured = estimate(result | {"group": {"ms_per_step_synchronised": {"median": 2.0}}}, 8, links)
    assert measured.synchronised == pytest.approx(2e-3 + message + 12 * 20e-6), "six layers, twice"
    rows = imagenet_rows([result], links)
    assert [row[:2] for row in rows] == [("mspcaps_t", "64"), ("mspcaps_t", "224")]


def test_no_estimate_is_called_measured() -> None:
    results = Path(__file__).parents[1] / "results" / "bench"
    measured = [json.loads(path.read_text()) for path in results.glob("train-*-nvidia-*.json")]
    block = PAGE.partition("<!-- scale -->")[2]
    tables = [line for line in block.splitlines() if line.startswith("| mspcaps")]
    for result in measured:
        median = result["variants"]["ours"]["ms_per_step"]["median"]
        (first,) = [line for line in tables if line.startswith(f"| {result['model']} | 1 |")]
        assert f"| {median:.2f} |" in first, "one GPU is what was measured"
    before, after = block.split("**Estimated, not measured.**")
    assert "| mspcaps" not in before and "| mspcaps" in after
