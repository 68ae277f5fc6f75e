"""The measured part of docs/lacaps.md says what ledger and benchmarks say, however little that is."""

import json
from pathlib import Path
from typing import Any

import pytest

from ledger_makers import enter, enter_seeds, entry
from reproduction.baselines import Baselines
from reproduction.lacaps import lacaps_values
from reproduction.pages import read_benchmarks, render
from reproduction.tables import read_report


def values_of(folder: Path) -> dict[str, Any]:
    report = read_report(folder)
    return lacaps_values(report, Baselines(report, read_benchmarks(folder)))


def block(folder: Path) -> str:
    return render("lacaps.md.j2", {"lacaps": values_of(folder), "rule": (0.85, 2)})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    enter_seeds(tmp_path, "paper/cifar10/mspcaps_t", [88.0, 89.0])
    return tmp_path


def test_what_is_missing_is_said(results: Path):
    text = block(results)
    assert "| MSPCaps-T, the paper's recipe | 88.50 ± 0.71 (n = 2) |" in text and "| 344,320 | 38.9 |" in text
    assert "`own/cifar10/lacaps_t`" in text and "lacaps.svg" not in text


def test_runs_health_and_trials(results: Path):
    health = {
        name: {"capsules": 16, "entropy": [e], "top": [0.1], "starved": [0.0], "swapped": {"fine": [lost]}}
        for name, e, lost in (("routing.0", 0.9, 12.5), ("routing.1", 0.8, 40.0))
    }
    run = entry("own/cifar10/lacaps_t", [94.25])
    run["curve"]["health"] = {
        name: {
            "capsules": 16, "swapped": {"fine": curves["swapped"]["fine"] * run["epochs"]},
            **{key: curves[key] * run["epochs"] for key in ("entropy", "top", "starved")},
        }
        for name, curves in health.items()
    }  # fmt: skip
    enter(results, run)
    for lr, reached in ((6e-3, 91.0), (3e-3, 92.5)):
        trial = entry("own/cifar10/lacaps_t", [reached])
        trial["recipe"] |= {"name": f"own+held_out=5000+lr={lr}", "held_out": 5000, "lr": lr}
        enter(results, trial)
    text = block(results)
    row = next(line for line in text.splitlines() if line.startswith("| LaCaps-T |"))
    assert "94.25 (n = 1)" in row and row.endswith("| 0.80 | 12.5 |")
    trials = [line for line in text.splitlines() if line.startswith("| `own/cifar10/lacaps_t`")]
    assert ["lr 0.003" in line and "92.50" in line for line in trials] == [True, False] and "91.00" in trials[1]


def test_cost_per_pixel(results: Path):
    sizes = [
        {"img_size": side, "batch_size": 2, "ns_per_pixel": 10.0 * cost, "bytes_per_pixel": 500.0,
         "relative_time": cost, "relative_memory": 1.0}
        for side, cost in ((64, 1.0), (512, 1.25))
    ]  # fmt: skip
    result = {
        "what": "pixels", "model": "lacaps_t", "quick": False, "batch_size": 2, "sizes": sizes, "refused": {},
        "environment": {
            "device": "a GPU", "date": "2026-01-01", "busy": False, "load_before": 0.0, "software": {"torch": "2.13.0"},
        },
    }  # fmt: skip
    (results / "bench").mkdir()
    (results / "bench" / "pixels.json").write_text(json.dumps(result))
    assert "| `lacaps_t` | a GPU | 512 | 12.5 | 1.25 x | 500 | 1.00 x |" in block(results)
    chart = values_of(results)["pixel_chart"]
    assert chart.count("<polyline") == 2 and "64: 1.00; 512: 1.25" in chart
