"""Data sets arrive on another machine as they left this one."""

import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

from mspcaps.data.cache import read_cached
from mspcaps.errors import MspcapsError
from tools.lease import assemble, bring, from_mosaic, keep, pieces, to_mosaic

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (250, 1, 28, 28), (300, 3, 8, 12)])
def test_mosaics_hold_every_pixel(shape: tuple[int, int, int, int]) -> None:
    images = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    assert np.array_equal(from_mosaic(to_mosaic(images), shape), images)


@pytest.mark.slow
def test_a_set_travels_in_pieces() -> None:
    name = "fashionmnist_sample"
    files = dict(pieces(name))
    for key, array in read_cached(name, "all").items():
        assert np.array_equal(assemble(name, files)[key], array), key
    del files[next(file for file in files if "x_test" in file)]
    with pytest.raises(MspcapsError, match="x_test"):
        assemble(name, files)


@pytest.mark.slow
def test_work_goes_on_until_it_is_stopped_and_what_is_new_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    for folder in ("results", "runs", "out"):
        Path(folder).mkdir()
    Path("results/old.json").touch()
    time.sleep(0.05)
    saving = (
        "trap 'echo saved > runs/checkpoint.safetensors; exit' TERM; touch runs/begun; while true; do sleep 0.1; done"
    )
    Path("queue").write_text(f"echo 1 > results/new.json\nfalse\n{saving}\ntouch results/never.json\n")
    worker = subprocess.Popen([sys.executable, "-m", "tools.lease", "work", "queue"], start_new_session=True)
    while not Path("runs/begun").exists():
        time.sleep(0.05)
    assert not keep(Path("out"))
    assert {"results/new.json", "runs/begun"} <= names() and "results/old.json" not in names()
    monkeypatch.setattr("tools.lease.PERIOD", 0.1)
    bring(Path("out"), 30, stop=True)
    worker.wait(timeout=30)
    assert "runs/checkpoint.safetensors" in names() and not Path("results/never.json").exists()


def names() -> set[str]:
    with tarfile.open("out/0.tar.gz") as archive:
        return set(archive.getnames())
