"""Why runs of T differ: health beside accuracy, the correlation, seeds then and now, training loss beside accuracy."""

import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from ledger_makers import enter, enter_seeds, entry
from mspcaps.evaluation.health import measure_health
from mspcaps.models import create_model
from reproduction.claims import compare, first_seeds
from reproduction.collapse import Study, study_collapse
from reproduction.dots import scatter_chart
from reproduction.pages import pages, render, seeds_of, t_rows, training_losses, values_of, verdicts
from reproduction.significance import Correlation
from reproduction.tables import read_report

ROOT = Path(__file__).parents[2]
T, OWN = "paper/cifar10/mspcaps_t", "paper/cifar10/mspcaps_t_unshared"


def enter_measured(
    results: Path, name: str, seed: int, last: float, entropy: float, fresh: float = 0.7, kind: str = "runs"
) -> None:
    """A run whose second block ends with this entropy; its first one has `fresh` after the first epoch, then 0.7."""
    run = entry(name, [70.0, last], seed)
    epochs = run["epochs"]

    def block(n: int, entropies: list[float], fine: float, coarse: float) -> dict[str, Any]:
        swapped = {"fine": [9.0] * (epochs - 1) + [fine], "coarse": [9.0] * (epochs - 1) + [coarse]}
        return {"capsules": n, "entropy": entropies, "top": [1.5] * epochs, "starved": [0.0] * epochs,
                "swapped": swapped}  # fmt: skip

    first, second = [fresh] + [0.7] * (epochs - 1), [0.99] * (epochs - 1) + [entropy]
    run["curve"]["health"] = {"routing.0": block(16, first, -0.1, 1.5), "routing.1": block(4, second, 1 + seed, 70.0)}
    run["curve"]["loss"] = [1.0] * (epochs - 1) + [0.01 * (1 + seed)]
    enter(results, run, kind=kind)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    results = tmp_path / "results"
    enter(results, entry(T, [70.0, 89.9], seed=0))  # without health
    for seed, last, entropy in ((1, 86.0, 0.80), (2, 88.0, 0.90), (3, 87.0, 0.86), (4, 89.0, 0.94)):
        enter_measured(results, T, seed, last, entropy)
    return results


def studied(results: Path) -> Study:
    study = study_collapse(read_report(results).compared)
    assert study is not None
    return study


def test_pearson_and_fisher_on_the_first_of_anscombes_sets() -> None:
    """R's cor.test prints 0.8164205 with 0.4243912 to 0.9506933."""
    x = [10.0, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    correlation = Correlation.of(x, y)
    assert correlation is not None and correlation.clear and correlation.n == 11
    bounds = (correlation.low, correlation.high)
    assert (correlation.r, *bounds) == pytest.approx((0.8164205, 0.4243912, 0.9506933), abs=1e-6)
    negated = Correlation.of(x, [-value for value in y])
    assert negated is not None and (negated.low, negated.high) == pytest.approx((-0.9506933, -0.4243912), abs=1e-6)
    assert str(correlation) == "r = +0.82 (95 % CI +0.42 to +0.95, n = 11)"


def test_a_correlation_without_an_interval_or_without_sense() -> None:
    three = Correlation.of([1.0, 2, 3], [1.0, 2, 4])
    assert three is not None and three.low is None and not three.clear and "CI" not in str(three)
    line = Correlation.of([1.0, 2, 3, 4], [2.0, 4, 6, 8])
    assert line is not None and line.r == pytest.approx(1) and line.high is None
    assert Correlation.of([1.0, 2], [1.0, 2]) is None and Correlation.of([1.0] * 5, [1.0, 2, 3, 4, 5]) is None


def test_health_beside_the_accuracy_of_every_run_that_has_it(ledger: Path) -> None:
    study = studied(ledger)
    assert [one.run.seed for one in study.runs] == [4, 2, 3, 1], "the most accurate first"
    assert study.repeated == [] and {len(row) for row in study.rows} == {len(study.heads)}
    assert study.rows[3] == ("1", "86.00", "86.00", "0.0200", "0.700", "0.800", "1.50", "1.50", "yes", "yes", "−0.10",
                             "1.50", "2.00", "70.00")  # fmt: skip
    assert [study.always(block) for block in (0, 1)] == [4, 0]
    down, up = study.collapsed(1)
    assert down is not None and up is not None and (down.n, up.n, up.mean) == (1, 3, pytest.approx(88.0))
    assert study.collapsed(0)[1] is None
    expected = statistics.correlation([0.80, 0.90, 0.86, 0.94], [86.0, 88, 87, 89])
    assert study.entropies[1] is not None and study.entropies[1].r == pytest.approx(expected)
    assert study.entropies[0] is None, "nothing varies"
    assert study.lost(1, "fine").mean == pytest.approx(3.5) and study.lost(0, "fine").deviation == pytest.approx(0)
    enter_measured(ledger, T, 5, 88.5, 0.92, fresh=0.9)
    assert studied(ledger).always(0) == 4, "not collapsed after its first epoch"


def test_only_the_papers_recipe_and_only_whole_measurements_count(ledger: Path) -> None:
    for change in ({"lr": 0.1, "name": "own"}, {"held_out": 9, "name": "paper+held_out=9"}):
        run = entry(T, [70.0, 99.0], seed=7)
        run["curve"]["health"] = read_report(ledger).runs[-1].curve["health"]
        run["recipe"] |= change
        enter(ledger, run)
    partly = entry(T, [70.0, 99.0], seed=8)
    curves = {**read_report(ledger).compared["mspcaps_t"].runs[1].curve["health"]["routing.0"]}
    curves["entropy"] = [None, *curves["entropy"][1:]]
    partly["curve"]["health"] = {"routing.0": curves, "routing.1": curves}
    enter(ledger, partly)
    assert len(studied(ledger).runs) == 4


def test_a_repeat_stands_for_a_first_run_without_health(ledger: Path) -> None:
    before = studied(ledger).entropies[1]
    enter_measured(ledger, T, 0, 85.0, 0.95, kind="repeats")
    enter_measured(ledger, T, 1, 99.0, 0.99, kind="repeats")
    study = studied(ledger)
    assert [(one.run.seed, one.last) for one in study.runs[-2:]] == [(1, 86.0), (0, 85.0)] and study.repeated == [0]
    assert study.before_repeats == before and study.entropies[1] is not None and study.entropies[1].n == 5


def test_variants_are_in_the_picture_but_not_in_the_correlation(ledger: Path) -> None:
    before = studied(ledger)
    enter_measured(ledger, OWN, 0, 91.0, 0.5)
    study = studied(ledger)
    assert study.entropies[1] == before.entropies[1] and [*study.points] == ["MSPCaps-T", "own weights"]
    chart = scatter_chart(study.points, ("entropy", "accuracy"), "a < b")
    dots = re.findall(r'class="(run|other)" cx="([\d.]+)" cy="([\d.]+)" r="5"><title>', chart)
    assert [kind for kind, *_ in dots] == ["run"] * 4 + ["other"] and "a &lt; b" in chart
    xs, ys = [float(x) for _, x, _ in dots], [float(y) for *_, y in dots]
    assert min(xs) == xs[4] and min(ys) == ys[4], "the least entropy is on the left, the best accuracy on top"
    assert xs[3] < xs[2] < xs[1] < xs[0] and ys[3] > ys[2] > ys[1] > ys[0]


@pytest.mark.slow
def test_without_health_there_is_no_section(tmp_path: Path) -> None:
    enter_seeds(tmp_path / "results", T, [88.6, 88.5, 88.1])
    report = read_report(tmp_path / "results")
    assert study_collapse(report.compared) is None and study_collapse({}) is None
    page = render("ablations.md.j2", values_of(report, ROOT / "results"))
    assert "collapse.svg" not in page


def test_new_networks_count_as_collapsed_in_the_first_block() -> None:
    """As docs/ablations.md says: the rule finds it before any training, so training is not the cause."""
    images = torch.randint(0, 256, (60, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for seed in range(5):
        torch.manual_seed(seed)
        blocks = measure_health(create_model("mspcaps_t"), images, torch.arange(60) % 10)
        assert [block.collapsed for block in blocks] == [True, False], seed


def test_verdicts_then_and_now(tmp_path: Path) -> None:
    """T has 88.6, 88.5 and 88.1, its rival 88.0, 87.7 and 87.55: p = 0.03. Seeds that fall far apart undo that."""
    enter_seeds(tmp_path, T, [88.6, 88.5, 88.1, 86.0, 90.0])
    enter_seeds(tmp_path, OWN, [88.0, 87.7, 87.55])
    enter_seeds(tmp_path, "paper/cifar10/mspcaps_l", [93.0, 93.1, 93.2])
    enter_seeds(tmp_path, "paper/cifar10/mspcaps_l_shared", [92.0, 92.1, 92.2])
    groups = read_report(tmp_path).compared
    assert {model: group.last.n for model, group in first_seeds(groups).items()} == dict.fromkeys(groups, 3)
    outcome = verdicts(compare(first_seeds(groups)), compare(groups))
    (row,) = [line for line in outcome["table"].splitlines() if "own weights" in line]
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["3 and 3", "holds (Holm)", "5 and 3", "inconclusive"]
    assert (outcome["changed"], outcome["same"]) == (1, 1)
    assert outcome["uncorrected"] == [2, 1] and outcome["holm"] == [2, 1] and outcome["judged"] == [2, 2]
    few = seeds_of(groups)
    assert few["few"] == {"mspcaps_t": 5, "mspcaps_t_unshared": 3}
    assert few["rest"] == {"mspcaps_l": 3, "mspcaps_l_shared": 3}
    enter_seeds(tmp_path, T, [88.0 + seed / 10 for seed in range(10)])
    assert "mspcaps_t" not in seeds_of(read_report(tmp_path).compared)["few"]


def test_the_table_of_t_has_the_last_and_the_best_epoch(tmp_path: Path) -> None:
    for seed, accuracies in enumerate(([80.0, 88.9, 88.6], [80.0, 88.7, 88.5], [80.0, 88.8, 88.1])):
        enter(tmp_path, entry(T, accuracies, seed))
    assert t_rows(read_report(tmp_path)) == [
        ("last", "3", "88.40", "0.26", "88.10", "88.60", "88.71", "−0.31"),
        ("best", "3", "88.80", "0.10", "88.70", "88.90", "88.71", "+0.09"),
    ]


def test_training_loss_of_shared_and_own_weights(tmp_path: Path) -> None:
    for name, losses in ((T, (0.02, 0.03, 0.04)), (OWN, (0.01, 0.02, 0.03))):
        for seed, loss in enumerate(losses):
            run = entry(name, [70.0, 88.0 + seed], seed)
            run["curve"]["loss"][-1] = loss
            enter(tmp_path, run)
    outcome = training_losses(read_report(tmp_path).compared)
    assert outcome["loss"].gap == pytest.approx(0.01)
    assert outcome["loss"].margin == pytest.approx(2.776 * 0.01 * (2 / 3) ** 0.5, rel=1e-3)
    assert "0.030 ± 0.010 (n = 3)" in outcome["table"] and "89.00 ± 1.00 (n = 3)" in outcome["table"]


@pytest.mark.slow
def test_the_published_pages_say_by_how_much_a_figure_is_missed_and_never_that_one_is_beaten() -> None:
    written = {path.relative_to(ROOT).as_posix(): text for path, text in pages(ROOT / "results").items()}
    row = values_of(read_report(ROOT / "results"), ROOT / "results")["t"]
    for name in ("README.md", "docs/results.md", "docs/ablations.md"):
        assert "beaten" not in written[name]
        for gap in (row.gap, row.last_gap):
            assert gap >= 0 or f"{-gap:.2f}" in written[name], name
    assert "docs/ablations/collapse.svg" in written
