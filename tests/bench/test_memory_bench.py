"""The benchmark of larger images: every measurement in a process of its own, tables that follow from the figures."""

import json
import runpy
import sys

import pytest
import torch

from mspcaps.bench import bench_memory, memory, tables
from mspcaps.cli import main
from mspcaps.errors import MspcapsError

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
STEPS = {"ms_per_image": 8.0, "system_ms_per_image": 6.0, "peak_memory_bytes": 3e9}


@pytest.mark.slow
@LINUX
def test_figures_and_tables(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    asked = []

    def in_new_process(model: str, side: int, batch: int, steps: int, kept: bool) -> dict[str, float]:
        asked.append((side, kept))
        return STEPS | ({"ms_per_image": 2.0, "system_ms_per_image": 0.1} if kept else {})

    monkeypatch.setattr(memory, "in_new_process", in_new_process)
    assert main(["bench", "memory", "--quick", "--device", "cpu", "--results", str(tmp_path)]) == 0
    assert asked == [(32, False), (32, True), (48, False), (48, True)]
    (path,) = (tmp_path / "bench").iterdir()
    result = json.loads(path.read_text())
    (steps, refused), notes = tables.result_tables(result)
    assert steps[1][0][2:] == ("8", "75 %", "125", "3.0 GB") and steps[1][1][2:4] == ("2", "5 %")
    assert "4 at 32 pixels" in notes[0]
    for one, row in zip(result["refused"], refused[1], strict=True):
        assert (row[3] == "refused") == (one["needed_bytes"] > one["free_bytes"]) == bool(one["answer"])
        assert 0 < one["seconds"] < 20


@LINUX
@pytest.mark.slow
def test_a_process_measures_its_own_steps() -> None:
    found = memory.in_new_process("mspcaps_t_scale16", 32, 4, 1, True)
    assert 0 <= found["system_ms_per_image"] <= found["ms_per_image"] < 10_000
    assert 1e5 < found["peak_memory_bytes"] < 1e9


def test_the_file_can_be_imported_on_any_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert runpy.run_path(str(memory.__file__), run_name="elsewhere")["SIZES"] == memory.SIZES


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(MspcapsError, match="CPU"):
        bench_memory(device=torch.device("cuda"))
    with pytest.raises(MspcapsError, match="1"):
        bench_memory(batch_size=1)
