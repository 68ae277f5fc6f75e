"""Data sets arrive on another machine as they left this one."""

import io
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
    for folder in ("results", "runs/a", "runs/b", "runs/held_out=9", "out"):
        Path(folder).mkdir(parents=True)
    Path("results/old.json").touch()
    for name in ("b/best", "b/last", "held_out=9/last"):
        Path(f"runs/{name}.safetensors").touch()
    time.sleep(0.05)
    saving = (
        "trap 'echo 1 > runs/a/checkpoint.safetensors; exit' TERM; touch runs/begun; while true; do sleep 0.1; done"
    )
    Path("queue").write_text(
        f"echo 1 > results/new.json\nfalse\n{saving}\ntouch results/never.json\n\ntouch results/b\n"
    )
    worker = subprocess.Popen([sys.executable, "-m", "tools.lease", "work", "queue"], start_new_session=True)
    while not (Path("runs/begun").exists() and Path("results/b").exists()):
        time.sleep(0.05)
    monkeypatch.setattr("tools.lease.PERIOD", 0.1)
    bring(Path("out"), 0.2, stop=False)
    arrived = names(Path("out"))
    assert {"results/new.json", "results/b", "runs/b/last.safetensors"} <= arrived
    assert not arrived & {"results/old.json", "runs/b/best.safetensors", "runs/held_out=9/last.safetensors"}
    bring(Path("out"), 30, stop=True)
    assert worker.wait(timeout=30) == 0
    assert "runs/a/checkpoint.safetensors" in names(Path("out")) and not Path("results/never.json").exists()


def test_what_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.lease.PART", 100)
    monkeypatch.setattr("tools.lease.TOTAL", 20)
    files = {name: tmp_path / name for name in "abcd"}
    for path, size in zip(files.values(), (6, 11, 7, 8), strict=True):
        path.write_bytes(bytes(size))
    out = tmp_path / "out"
    out.mkdir()
    assert keep(out, [[files["a"]], [files["b"], files["c"]], [files["d"]]]) == [files["b"], files["c"]]
    assert len(list(out.iterdir())) > 1 and all(path.stat().st_size <= 100 for path in out.iterdir())
    assert names(out) == {str(files[name]).lstrip("/") for name in "ad"}


def names(out: Path) -> set[str]:
    parts = sorted(out.glob("part.*"), key=lambda path: int(path.suffix[1:]))
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        return set(archive.getnames())
