"""Pose and changed images on the page: paired differences by hand, and a page without results."""

import math
import statistics
from pathlib import Path

import pytest

from ledger_makers import enter, enter_seeds, entry
from mspcaps.evaluation.shift_results import ShiftResult, write_shifts
from mspcaps.evaluation.shifts import CHANGES, ShiftEvaluation
from mspcaps.training.recipe import load_recipe
from mspcaps.training.sweep import load_sweep
from reproduction.pages import render
from reproduction.pose import NETWORKS, TASKS, paired, pose_values, read_shifted, read_tasks, verdict
from reproduction.tables import read_report

ROOT = Path(__file__).parents[2]
T, LINEAR = [90.0, 91.0, 92.0, 91.5, 90.5], [89.0, 89.8, 91.1, 90.4, 89.7]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    results = tmp_path / "results"
    enter_seeds(results, "pose/mnist40/mspcaps_t", T)
    enter_seeds(results, "pose/mnist40/mspcaps_t_linear", LINEAR)
    enter_seeds(results, "pose/mnist40/resnet20", [95.0])
    recipe = load_recipe("pose/mnist40/resnet20").replace(held_out=5000)
    known = entry("pose/mnist40/resnet20", [99.25], recipe=recipe.resolve().to_dict(), measured_on="held-out")
    enter(results, known)
    return results


def test_differences_are_paired_by_seed(ledger: Path) -> None:
    (task,) = read_tasks(read_report(ledger))
    linear, resnet = task.pairs
    gaps = [a - b for a, b in zip(T, LINEAR, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(5)
    assert linear.difference.gap == pytest.approx(statistics.mean(gaps))
    assert linear.difference.margin == pytest.approx(2.776445 * error, rel=1e-5), "Student's quantile for four"
    assert resnet.difference.gap == -5.0 and resnet.difference.margin is None
    assert (linear.seeds, resnet.seeds, resnet.cell) == (5, 1, "−5.00 (n = 1)")
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert verdict(task.pairs)["better"] == [linear.words] and not verdict([resnet])["undecided"]
    assert verdict([resnet, linear]) == {"better": [linear.words], "worse": [], "undecided": [], "open": [resnet.words]}
    assert "99.25" in task.table and set(task.known) == {"resnet20"}


def test_a_task_alone_names_its_machines_and_the_other_task_is_missing(ledger: Path) -> None:
    values = pose_values(read_report(ledger), ledger)
    assert values["tasks"][0].machines == ["a GPU, bf16"] and values["tasks_missing"] == ["dSprites, held-out poses"]
    for seed in range(5):
        run = entry("pose/mnist40/mspcaps_t_linear_margin", [95.0], seed, device="a CPU", precision="fp32")
        enter(ledger, run)
    (task,) = read_tasks(read_report(ledger))
    assert task.machines == ["a CPU, fp32", "a GPU, bf16"] and "a CPU, fp32" in task.table


def changed(seed: int, model: str, level: float, **more: bool) -> ShiftResult:
    accuracy = {name: (level,) * 4 + (level + place,) for place, name in enumerate(CHANGES)}
    return ShiftResult(model, "cifar10", ShiftEvaluation(90.0, accuracy, 10_000, 0), "paper", seed, **more)


def test_changed_images(ledger: Path) -> None:
    for seed, (ours, other) in enumerate(((60.0, 58.0), (62.0, 59.0), (61.0, 59.5))):
        write_shifts(ledger, changed(seed, "mspcaps_t", ours))
        write_shifts(ledger, changed(seed, "mspcaps_t_linear", other))
    write_shifts(ledger, changed(7, "mspcaps_t", 10.0, part=True))
    (shifted,) = read_shifted(ledger)
    assert list(shifted.networks) == [("mspcaps_t", "paper"), ("mspcaps_t_linear", "paper")]
    (pair,) = shifted.pairs().values()
    (lost,) = shifted.pairs(lost=True).values()
    assert pair.difference.gap == pytest.approx((2 + 3 + 1.5) / 3)
    assert lost.difference.gap == pytest.approx(-pair.difference.gap), "both are equally good on unchanged images"
    assert shifted.values("mspcaps_t", "paper") == pytest.approx({0: 60.3, 1: 62.3, 2: 61.3})
    page = render("shifts.md.j2", pose_values(read_report(ledger), ledger))
    assert pair.cell.split()[0] in page and "(robustness/shifts-cifar10.svg)" in page
    assert shifted.dataset == "cifar10" and shifted.chart.count("<polyline") == 2 * len(CHANGES)


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    enter_seeds(tmp_path, "paper/cifar10/mspcaps_t", [88.0])
    values = pose_values(read_report(tmp_path), tmp_path)
    page = render("shifts.md.j2", values)
    assert page.count("Not measured yet") == 2 and all(f"| {name} |" in page for name in CHANGES)


def test_the_sweep_has_what_the_tables_need() -> None:
    runs = load_sweep(ROOT / "recipes" / "sweeps" / "pose.toml")
    for task in TASKS:
        for model in (model for model in NETWORKS if model != "resnet18"):
            own = [run for run in runs if (run.data, run.model) == (task, model)]
            assert [run.held_out for run in own].count(5000) == 1
            assert len({run.seed for run in own if not run.held_out}) >= (2 if model == "mspcaps_l" else 5)
    augmented = [value for run in runs for value in vars(run.resolve().augment).values() if value]
    assert not augmented, "augmentation would show the held-out poses"
    assert len({(run.lr, run.epochs, run.batch_size, run.optimizer, run.weight_decay) for run in runs}) == 1
