"""A run that is killed at random instants, again and again, ends with the weights of one that never was.

The instants lie anywhere in the life of the process, from its first import to its last page. `make soak` kills a
hundred times, `make test` twice.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors import safe_open

from mspcaps.files import sha256_of
from tests.cli.cli_makers import draw

ROOT = Path(__file__).parents[2]
# The command as it is, but that it says when it begins, before which the interpreter itself is not ready, and keeps a
# checkpoint of every step: a run of seconds would never write one.
COMMAND = """
import os, signal, sys
from mspcaps.__main__ import interrupted, main
signal.signal(signal.SIGINT, interrupted)
os.write(1, b"ready\\n")
import mspcaps.training.launch
mspcaps.training.launch.train.__kwdefaults__["save_every"] = 0.0
sys.exit(main())
"""
LINE = "train --data pictures --model mspcaps_t_scale16 --epochs 4 --batch-size 4 --validation 4 --device cpu"
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
CHAINS, KILLS = 25, 4  # as many runs, each killed so often
PATIENCE = 600  # seconds: a machine may be busy, but it does not hang


def start(place: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *LINE.split()], cwd=place, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@dataclass(frozen=True)
class Undisturbed:
    seconds: float
    made: dict[str, object]


def outcome(place: Path) -> dict[str, object]:
    """What a run leaves behind that does not depend on the clock."""
    (entry,) = (json.loads(path.read_text()) for path in (place / "results").rglob("*.json"))
    (folder,) = (path.parent for path in (place / "runs").rglob("last.safetensors"))
    files = {path.name: sha256_of(path) for path in folder.glob("*.safetensors")}
    return files | {key: entry[key] for key in ("accuracy", "curve", "weights_sha256", "epochs", "data_sha256")}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    place = tmp_path_factory.mktemp("undisturbed")
    draw(place / "pictures", count=20)
    began = time.monotonic()
    process = start(place)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return Undisturbed(time.monotonic() - began, outcome(place))


def check_files(place: Path) -> None:
    """Whatever is there under its name is whole."""
    for path in place.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.keys()
    for path in place.rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.timeout(20 * PATIENCE)
@pytest.mark.parametrize(
    ("chain", "kills"),
    [pytest.param(0, 2), *(pytest.param(n + 1, KILLS, marks=pytest.mark.soak) for n in range(CHAINS))],
)
def test_killed_runs_end_alike(
    chain: int, kills: int, undisturbed: Undisturbed, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    generator, done = random.Random(chain), 0
    draw(tmp_path / "pictures", count=20)
    while done < kills:
        process, wanted = start(tmp_path), SIGNALS[(chain + done) % len(SIGNALS)]
        try:
            process.wait(generator.uniform(0, undisturbed.seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(wanted)
            _, err = process.communicate(timeout=PATIENCE)
            assert "Traceback" not in err, err
            assert process.returncode in (-wanted, 128 + wanted, 0), err  # 0: it was as good as done
            record_property("killed", wanted.name)
            done += 1
            check_files(tmp_path)
        else:  # it came to its end first: begin anew
            _, err = process.communicate()
            assert process.returncode == 0, err
            assert outcome(tmp_path) == undisturbed.made
            for name in ("runs", "results"):
                shutil.rmtree(tmp_path / name)
    process = start(tmp_path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert outcome(tmp_path) == undisturbed.made
    assert not list(tmp_path.rglob("*.part")), "what a killed process was writing is still there"
