"""Tables 2 and 3: every row with our runs, a cause for every large difference, and no claim before it is true."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from ledger_makers import enter, entry, shortened
from mspcaps.bench import list_families
from mspcaps.models import list_models, summarize
from mspcaps.pages.charts import Axes
from reproduction import paper
from reproduction.baselines import Baselines, accuracy_table, charts, cost_table, short_table
from reproduction.pages import read_benchmarks, render, values_of
from reproduction.tables import read_report
from reproduction.tradeoff import Mark, overlap, place_labels, tradeoff_chart

ROOT = Path(__file__).parents[2]
CLAIM = "capsule families under one protocol"
MODELS = ("capsnet", "da_capsnet", "aa_capsnet", "idp_capsnet", "efficient_capsnet", "orthcaps_s", "rs_capsnet",
          "ar_capsnet", "deepcaps", "orthcaps_d", "mspcaps_t", "mspcaps_l")  # fmt: skip


@pytest.fixture
def results(tmp_path):
    """Every network on CIFAR-10, as accurate as in the paper except OrthCaps-D, three points below in 50 epochs."""
    results = tmp_path / "results"
    printed = {b.model: float(b.accuracy[2].rstrip("*")) for t in paper.MAIN for b in t.baselines if b.model}
    for model in MODELS:
        figure = paper.figure_of(model, "cifar10")
        accuracy = printed.get(model) or figure.accuracy
        name = f"paper/cifar10/{model}"
        enter(results, shortened(name, accuracy - 3, 50) if model == "orthcaps_d" else entry(name, [60.0, accuracy]))
    enter(results, entry("controls/cifar10/resnet20", [60.0, 89.0]))
    enter(results, entry("controls/cifar10/resnet18", [60.0, 95.0]))
    return results


def baselines_of(results: Path, **words: dict) -> Baselines:
    return Baselines(read_report(results), words=words)


def network(baselines: Baselines, model: str):
    return next(n for n in baselines.networks if n.model == model)


def cells(table: str, title: str) -> list[str]:
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {title} |")]
    return row.strip("| ").split(" | ")


def test_every_row_of_the_paper_has_its_model_and_ensembles_have_none():
    rows = [b for table in paper.MAIN for b in table.baselines]
    assert {b.model for b in rows if "†" not in b.network} <= set(list_models())
    assert all(bool(b.model) != ("†" in b.network) for b in rows) and len(rows) == 12
    assert sorted({b.model for b in rows if b.model} | {"mspcaps_t", "mspcaps_l"}) == sorted(MODELS)
    assert {*MODELS, "resnet18", "resnet20"} <= set(list_families()), "the benchmark measures every row"


@pytest.mark.slow
def test_ours_stands_beside_the_printed_cell(results):
    baselines = baselines_of(results)
    (source, rows), (_, large) = baselines.tables
    table = accuracy_table(source, rows)
    assert cells(table, "CapsNet")[1:] == [
        "6.8M", "7,992,576", "99.45", "–", "93.96", "–", "74.88", "74.88<br>best 74.88<br>n = 1",
    ]  # fmt: skip
    assert cells(table, "DA-CapsNet")[7] == "85.47\\*" and cells(table, "ResNet-20")[1] == "–"
    assert "87.56<br>n = 1, 50 epochs" in cells(accuracy_table(paper.MAIN[1], large), "OrthCaps-D")[-1]
    quoted = cells(accuracy_table(paper.MAIN[1], large), "AR-CapsNet†")
    assert quoted[1:] == ["9.6M\\*", "–", "99.49\\*", "–", "–", "–", "90.11\\*", "–"]


@pytest.mark.slow
def test_only_the_epochs_may_differ_and_the_whole_recipe_comes_first(results):
    other = shortened("paper/cifar10/capsnet", 99.0, 100)
    enter(results, other)
    assert network(baselines_of(results), "capsnet").cifar10.group.first.epochs == 300
    changed = shortened("paper/cifar10/orthcaps_d", 99.0, 58)
    changed["recipe"]["lr"] = 0.1
    enter(results, changed)
    assert network(baselines_of(results), "orthcaps_d").cifar10.group.first.epochs == 50
    enter(results, shortened("paper/cifar10/orthcaps_d", 90.0, 55))
    assert network(baselines_of(results), "orthcaps_d").cifar10.group.first.epochs == 55


def test_a_run_shorter_than_planned_is_listed_but_does_not_count(tmp_path):
    """The sweep plans 45 epochs for OrthCaps-D and the recipe's 300 for Efficient-Caps."""
    for model, epochs in (("orthcaps_d", 45), ("orthcaps_d", 44), ("efficient_capsnet", 299), ("capsnet", 5)):
        enter(tmp_path, shortened(f"paper/cifar10/{model}", 70.0, epochs))
    enter(tmp_path, shortened("own/cifar10/lacaps_t", 70.0, 4))
    baselines = baselines_of(tmp_path)
    trained = {n.model: n.cifar10.group.first.epochs for n in baselines.networks if n.cifar10.group}
    assert trained == {"orthcaps_d": 45} and baselines.trained("own/cifar10/lacaps_t") is None
    short = [(network.model, group.first.epochs) for network, _, group in baselines.short]
    assert sorted(short) == [("capsnet", 5), ("efficient_capsnet", 299), ("orthcaps_d", 44)]
    assert cells(short_table(baselines), "CapsNet")[1:4] == ["CIFAR-10", "5", "70.00 (n = 1)"]
    assert short_table(baselines_of(enter(tmp_path / "b", entry("quickstart", [1.0])).parents[3])) == ""


@pytest.mark.slow
def test_the_cost_in_gpu_seconds_is_that_of_runs_on_a_gpu(tmp_path):
    slow = {"seconds": {"train": 9_000.0, "per_epoch": 1.0}, "device": "x86_64 CPU, 2 threads", "precision": "fp32"}
    enter(tmp_path, entry("paper/cifar10/capsnet", [74.0], 1, **slow))
    baselines = baselines_of(tmp_path)
    assert baselines.gpu_seconds(network(baselines, "capsnet")) is None
    assert cells(cost_table(baselines, baselines.tables[0][1]), "CapsNet")[-1] == "300"
    assert "accuracy_cost.svg" not in charts(baselines) and baselines.machines == ["x86_64 CPU, 2 threads, fp32"]
    enter(tmp_path, entry("paper/cifar10/capsnet", [74.0]))
    baselines = baselines_of(tmp_path)
    assert baselines.gpu_seconds(network(baselines, "capsnet")) == 100.0


def test_held_out_runs_never_count(tmp_path):
    trial = entry("paper/cifar10/capsnet", [60.0, 99.0])
    trial["recipe"]["held_out"] = 5000
    enter(tmp_path, trial)
    assert network(baselines_of(tmp_path), "capsnet").cifar10.group is None


def test_costs_are_counted_trained_and_measured(results):
    run = entry("paper/cifar10/da_capsnet", [60.0, 85.0], seed=1)
    run["seconds"] = {"train": 400.0, "per_epoch": 1.0, "side_by_side": 4}
    lone = entry("paper/mnist/mspcaps_t", [60.0, 99.0])
    lone["seconds"] = {"train": 400.0, "per_epoch": 1.0, "side_by_side": 4}
    for one in (run, lone):
        enter(results, one)
    family = {"train": {"images_per_second": 1234.0, "relative": 0.5, "peak_memory_bytes": 2_000_000}}
    family["infer"] = {"images_per_second": 99_999.0, "relative": 2.0}
    old, new = (
        {
            "what": "families",
            "environment": {"device": "a GPU", "date": date},
            "families": {"da_capsnet": family | more},
        }
        for date, more in (("2026-01-02", {}), ("2026-01-01", {"train": {}}))
    )
    baselines = Baselines(read_report(results), [old, new, {"what": "train"}], {})
    cost = summarize("da_capsnet")
    assert cells(cost_table(baselines, baselines.tables[0][1]), "DA-CapsNet")[1:] == [
        f"{cost.params:,}", f"{cost.macs / 1e6:.3g}", "100", "300", "1,234", "0.5 ×", "2.0 MB", "99,999",
    ]  # fmt: skip
    shared = network(baselines, "mspcaps_t").cells[0].group
    assert shared.gpu_seconds == 100.0, "a quarter of a device for 400 s"


def test_of_runs_that_shared_a_gpu_the_benchmark_knows_the_cost(tmp_path):
    """A large network beside three small ones takes more than a quarter of the GPU."""
    run = entry("paper/cifar10/capsnet", [60.0, 74.0])
    run |= {"seconds": {"train": 400.0, "per_epoch": 1.0, "side_by_side": 4}, "images": 50_000}
    enter(tmp_path, run)

    def seconds(device: str) -> float:
        family = {"train": {"images_per_second": 60_000.0}}
        where = {"device": device, "date": "2026-01-01"}
        bench = {"what": "families", "environment": where, "families": {"capsnet": family}}
        baselines = Baselines(read_report(tmp_path), [bench], {})
        return baselines.gpu_seconds(network(baselines, "capsnet"))

    assert seconds(run["device"]) == pytest.approx(300 * 50_000 / 60_000) and seconds("another GPU") == 100.0


@pytest.mark.slow
def test_what_differs_by_more_than_two_points_needs_a_cause(results):
    baselines = baselines_of(results)
    assert baselines.unexplained == ["OrthCaps-D on CIFAR-10"]
    (difference,) = baselines.differences
    assert difference.cell.gap == -3.0 and difference.native_recipe == "native/cifar10/orthcaps_d"
    half = baselines_of(results, orthcaps_d={"quoted": "x", "cifar10": {"tried": "this"}})
    assert half.unexplained == ["OrthCaps-D on CIFAR-10"], "what was tried is not yet a cause"
    whole = baselines_of(results, orthcaps_d={"cifar10": {"tried": "this", "cause": "that"}})
    assert whole.unexplained == [] and whole.differences[0].cause == "that"
    enter(results, entry("native/cifar10/orthcaps_d", [60.0, 91.0]))
    assert baselines_of(results).differences[0].cell.native.last.mean == 91.0
    enter(results, entry("paper/mnist/mspcaps_t", [60.0, 97.69]))  # exactly two points
    assert len(baselines_of(results).differences) == 1


def test_every_difference_in_the_ledger_has_been_looked_into():
    """Fails until reproduction/differences.toml has `tried` and `cause` for every such row."""
    baselines = Baselines(read_report(ROOT / "results"))
    assert not baselines.unexplained
    for model, words in baselines.words.items():
        assert model in MODELS and words["quoted"], model
        assert set(words) - {"quoted"} <= {"mnist", "fashionmnist", "svhn", "cifar10"}
        assert all(set(words[dataset]) == {"tried", "cause"} for dataset in set(words) - {"quoted"})


@pytest.mark.slow
def test_ten_families_are_claimed_only_when_every_row_is_there(results):
    whole = baselines_of(results)
    families = {re.sub(r"_[a-z]$", "", n.model) for n in whole.networks if not n.model.startswith("resnet")}
    assert not whole.untrained and len(families) == 10, "MSPCaps-T and -L are one, OrthCaps-S and -D are one"
    assert CLAIM in render("readme_opening.md.j2", opening(results))
    next((results / "runs" / "cifar10" / "aa_capsnet").iterdir()).unlink()
    assert [n.model for n in baselines_of(results).untrained] == ["aa_capsnet"]
    assert CLAIM not in render("readme_opening.md.j2", opening(results))


def opening(results: Path) -> dict:
    """What the README's block is filled with; the values of other subjects are those of our own ledger."""
    return values_of(read_report(ROOT / "results"), ROOT / "results") | {"baselines": baselines_of(results)}


@pytest.mark.slow
def test_without_a_benchmark_of_a_gpu_the_readme_claims_no_speed(results):
    assert "docs/speed.md" in render("readme_opening.md.j2", opening(results))
    assert "docs/speed.md" not in render("readme_opening.md.j2", opening(results) | {"fastest": []})


def test_nothing_we_publish_claims_it_too_early():
    complete = not Baselines(read_report(ROOT / "results")).untrained
    for path in (ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert complete or CLAIM not in text, path.name


def test_labels_do_not_overlap(results):
    """Even with all networks and the paper's figures in the chart."""
    baselines = baselines_of(results)
    svgs = charts(baselines)
    assert set(svgs) == {"accuracy_parameters.svg", "accuracy_cost.svg"}
    for chart in svgs.values():
        assert all(n.title in chart for n in baselines.networks)
    marks = [
        Mark(n.title, n.cost.params, n.cifar10.group.last.mean, n.cifar10.figure, n.model.startswith("resnet"))
        for n in baselines.networks
    ]
    axes = Axes([1e5, 1e6, 1e7, 3e7], [70.0, 80.0, 90.0, 100.0], log_x=True, left=70, right=832, top=14, bottom=448)
    boxes = place_labels(marks, axes)
    assert len(boxes) == 14
    for a, b in combinations(boxes.values(), 2):
        assert not overlap(a, b)


def test_marks_lie_where_their_numbers_say():
    chart = tradeoff_chart([Mark("a", 1e5, 70.0), Mark("b", 1e6, 80.0, 85.0), Mark("c", 1e7, 90.0)], ("x", "y"), "t")
    circles = [
        tuple(map(float, place)) for place in re.findall(r'<circle class="run" cx="([\d.]+)" cy="([\d.]+)"', chart)
    ]
    (xa, ya), (xb, yb), (xc, yc) = circles[:3]
    assert xb - xa == pytest.approx(xc - xb, abs=0.2), "each is ten times the one before"
    assert ya - yb == pytest.approx(yb - yc, abs=0.2) and ya > yb
    assert chart.count('class="paper"') == 2, "one in the chart, one in the key"


def test_the_committed_benchmarks_can_be_read():
    assert {"train", "infer"} <= {result["what"] for result in read_benchmarks(ROOT / "results")}
