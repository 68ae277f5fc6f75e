"""`mspcaps report`: right figures from any ledger, on a page that is whole, and nothing written elsewhere."""

import json
import math
import re
import statistics
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ledger_makers import enter, enter_three_seeds, entry
from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from mspcaps.report import write_report
from mspcaps.report.curves import accuracy_chart, health_charts, loss_chart, tick_words
from mspcaps.report.runs import Spread, group_runs, read_groups, settings
from mspcaps.report.write import group_row, markdown, page, run_row, run_rows
from mspcaps.training import Recipe, train
from tests.app.chromium import Chromium, find_chromium

T = "paper/cifar10/mspcaps_t"


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def ledger(tmp_path):
    """T on CIFAR-10 with three seeds, and a run of our own on pictures of our own."""
    results = tmp_path / "results"
    enter_three_seeds(results)
    own = entry(T, [80.0, 91.0, 90.0], dataset="pictures", provenance="A folder.")
    own["recipe"] |= {"name": "own+lr=0.002", "lr": 0.002, "data": "pictures", "held_out": 7}
    enter(results, own)
    return results


def cells(text, start):
    """Of the first table row that begins with these cells."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_figures_are_mean_and_deviation_over_seeds(ledger):
    last, best = [88.6, 88.5, 88.1], [88.9, 88.7, 88.8]
    row = cells(markdown(read_groups(ledger)), "mspcaps_t | paper")
    assert row[3] == f"{statistics.mean(last):.2f} ± {statistics.stdev(last):.2f}" == "88.40 ± 0.26"
    assert row[4] == f"{statistics.mean(best):.2f} ± {statistics.stdev(best):.2f}" == "88.80 ± 0.10"
    assert row[5:] == ["test", "3", "344,320", "110 s, a GPU, bf16"]
    assert cells(markdown(read_groups(ledger)), "mspcaps_t | own+lr=0.002")[2:7] == [
        "held-out", "90.00", "91.00", "held-out", "1",
    ]  # fmt: skip


def test_repeats_of_a_seed_are_averaged_and_n_counts_seeds(ledger):
    """Seeds 88.6, 88.5 and 88.1; the first is made again with 88.0 and is 88.3, the last with 87.1 and is 87.6."""
    for seed, last in ((0, 88.0), (2, 87.1)):
        enter(ledger, entry(T, [80.0, 88.8, last], seed), kind="repeats")
    group = next(group for group in read_groups(ledger) if group.first.dataset == "cifar10")
    seeds = [(88.6 + 88.0) / 2, 88.5, (88.1 + 87.1) / 2]
    assert (group.last.mean, group.last.n) == (pytest.approx(statistics.mean(seeds)), 3)
    assert group.last.deviation == pytest.approx(statistics.stdev(seeds))
    assert group.best.mean == pytest.approx(statistics.mean([88.85, 88.7, 88.8]))
    text = markdown(read_groups(ledger))
    assert text.count("| cifar10 | mspcaps_t | paper |") == 5 and "| 2 (repeat) | 87.10 |" in text


def test_a_repeat_of_another_recipe_is_not_averaged(ledger):
    other = entry(T, [80.0, 50.0], 0)
    other["recipe"]["lr"] = 0.1
    enter(ledger, other, kind="repeats")
    group, orphan = (group for group in read_groups(ledger) if group.first.dataset == "cifar10")
    assert group.last.mean == pytest.approx(88.4) and group.repeats == ()
    assert (orphan.last.mean, orphan.last.n) == (50.0, 1), "a repeat of nothing is shown, not lost"


def test_runs_of_one_name_but_different_recipes_stay_apart(ledger):
    other = entry(T, [80.0, 95.0], seed=3)
    other["recipe"]["weight_decay"] = 0.05
    enter(ledger, other)
    found = [group.last.n for group in read_groups(ledger) if group.first.dataset == "cifar10"]
    assert sorted(found) == [1, 3]


def test_the_time_of_a_run_beside_others_does_not_count_if_one_was_alone(tmp_path):
    for seed in (0, 1):
        seconds = {"train": 400.0 + 100 * seed, "per_epoch": 1.3, "side_by_side": 4}
        enter(tmp_path, entry(T, [80.0], seed, seconds=seconds))
    assert read_groups(tmp_path)[0].training_time == "450 s, a GPU, bf16, shared"
    enter(tmp_path, entry(T, [80.0], 2))  # 120 s
    assert read_groups(tmp_path)[0].training_time == "120 s, a GPU, bf16"


def test_runs_of_several_machines_are_one_row_that_names_each(tmp_path):
    """Another device, another precision, or one that an old entry does not name: the times are not averaged."""
    for seed, machine in enumerate((("a GPU", "bf16"), ("a GPU", "fp32"), ("a CPU", "fp32"), ("a CPU", ""))):
        enter(tmp_path, entry(T, [80.0], seed, device=machine[0], precision=machine[1]))
    (group,) = read_groups(tmp_path)
    assert group.last.n == 4
    assert group.training_time == "130 s, a CPU; 120 s, a CPU, fp32; 100 s, a GPU, bf16; 110 s, a GPU, fp32"
    assert group_row(group)["devices"] == "a CPU; a CPU, fp32; a GPU, bf16; a GPU, fp32"
    assert [run_row(run, "runs")["precision"] for run in group.runs] == ["bf16", "fp32", "fp32", None]
    assert [row[9] for row in run_rows([group])] == ["a GPU, bf16", "a GPU, fp32", "a CPU, fp32", "a CPU"]


def test_the_page_is_whole_needs_nothing_else_and_says_the_same(ledger):
    groups = read_groups(ledger)
    html = page(groups)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"https?:|<script|<link|@import|url\(", html), "no request leaves the page"
    assert "cifar10 &amp; &lt;such&gt;." in html
    plain = re.sub(r"<[^>]+>", "", html)
    for value in ("88.40 ± 0.26", "88.80 ± 0.10", "90.00", "own+lr=0.002", "344,320"):
        assert value in plain
    targets, links = re.findall(r'id="([^"]+)"', html), re.findall(r'href="#([^"]+)"', html)
    assert len(links) == 4 and set(links) <= set(targets), "contents: two data sets, how to read, all runs"
    assert html.count("<polyline") == 2 * (4 + 1), "three seeds and their mean; one seed alone, twice"


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="there is no chromium on this machine")
def test_rows_stay_low_on_a_phone(ledger, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(read_groups(ledger)))
    with Chromium(390) as window:
        window.open(file.as_uri())
        window.wait("document.readyState == 'complete' && document.querySelector('tbody tr')")
        heights = window.run("[...document.querySelectorAll('tbody tr')].map(row => row.offsetHeight)")
        assert len(heights) > 3 and max(heights) < 60, "one line each: a table is swiped sideways"
        assert window.run("document.documentElement.scrollWidth") == 390


def test_it_is_true_for_a_user_who_never_heard_of_the_paper(ledger):
    for text in (page(read_groups(ledger)), markdown(read_groups(ledger))):
        words = text.replace("| paper |", "").replace(">paper<", "").replace(", paper<", "").replace("var(--paper)", "")
        assert not re.search(r"the paper|baseline|MSPCaps-[TL]|\bwe\b|\bours\b", words, flags=re.IGNORECASE)


def test_routing_health_is_drawn_where_it_was_measured(ledger):
    def health(shift):
        values = {"capsules": 16, "entropy": [None, *[0.9 - shift] * 299], "top": [1.5 + shift] * 300, "starved": [0.0]}
        return {"routing.0": values | {"swapped": {}}, "routing.1": values | {"swapped": {}}}

    for seed in (0, 1):
        made = entry(T, [80.0, 88.0], seed)
        made["curve"]["health"] = health(0.01 * seed)
        made["recipe"]["name"] = "healthy"
        enter(ledger, made)
    groups = {group.first.name: group for group in read_groups(ledger)}
    assert health_charts(groups["paper"]) == []
    charts = health_charts(groups["healthy"])
    assert [words.split(":")[0] for words, _ in charts] == ["routing.0", "routing.0", "routing.1", "routing.1"]
    for (_, chart), level in zip(charts, (0.85, 2.0, 0.85, 2.0), strict=True):
        assert f"{level:g}</text>" in chart and chart.count("<polyline") == 3 and chart.count('class="level"') == 1
        assert "nan" not in chart and "None" not in chart
    first = re.search(r'class="seed" points="([^"]+)"', charts[0][1])[1].split()
    assert len(first) == 299, "an epoch that was not measured has no point"
    assert page(read_groups(ledger)).count('class="level"') == 4


def test_only_the_folder_that_was_named_is_written(ledger, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert "4 runs" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "runs"]
    assert sorted(path.name for path in (tmp_path / "runs/report").iterdir()) == ["index.html", "report.md"]
    write_report(ledger, tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["index.html", "report.md"]
    (ledger / "runs/cifar10/mspcaps_t/paper-seed0.json").write_text("{")
    assert main(["report"]) == 2
    assert "paper-seed0.json" in capsys.readouterr().err


def test_what_else_lies_in_results_is_left_alone(ledger):
    """results/attacks/<model>/x.json is as deep as an entry was before runs had a folder of their own."""
    before = [group.last for group in read_groups(ledger)]
    for place in ("attacks/mspcaps_t/x.json", "bench/a/b/c.json"):
        (ledger / place).parent.mkdir(parents=True)
        (ledger / place).write_text(json.dumps({"attack": "fgsm"}))
    assert [group.last for group in read_groups(ledger)] == before


def test_a_ledger_without_runs(tmp_path):
    (tmp_path / "runs").mkdir()
    write_report(tmp_path, tmp_path / "out")
    assert "no runs yet" in (tmp_path / "out/index.html").read_text()
    with pytest.raises(MspcapsError, match="nowhere"):
        write_report(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "where", "value"),
    [
        ({"accuracy": {"last": 99.0, "best": 99.0, "best_epoch": 1}}, None, "paper-seed0.json"),
        ({"curve": {"loss": [1.0], "accuracy": [88.0]}}, None, "300 epochs"),
        ({"seconds": {}}, None, "seconds.train"),
        ({}, "cifar10/mspcaps_t/paper-seed7.json", "paper-seed0.json"),
    ],
)
def test_entries_that_cannot_be_trusted_are_refused(changes, where, value, tmp_path):
    enter(tmp_path, entry(T, [80.0, 88.0]) | changes, where)
    with pytest.raises(MspcapsError, match=value):
        read_groups(tmp_path)


@pytest.mark.slow
def test_what_the_trainer_writes_is_what_the_report_reads(tmp_path):
    recipe = Recipe(
        model="mspcaps_t_scale16", data="fashionmnist_sample", epochs=1, batch_size=500, img_size=12, warmup_epochs=0
    )
    for folder in ("first", "again"):
        train(recipe, device="cpu", out=tmp_path / folder, results=tmp_path / "results", progress=False)
    (group,) = read_groups(tmp_path / "results")
    assert (len(group.runs), len(group.repeats), group.last.n) == (1, 1, 1)
    assert settings(group.first.recipe) == settings(recipe.resolve().to_dict())
    assert group.last.mean == pytest.approx((group.runs[0].accuracy.last + group.repeats[0].accuracy.last) / 2)
    assert f"| {group.last} | {group.best} | 1 |" in markdown([group])
    assert "nan" not in page([group]) and page([group]).count('class="level"') == 2, "entropy and top of its one block"


def test_spread():
    assert Spread.of([1.0]) == Spread(1.0, None, 1) and str(Spread.of([1.0])) == "1.00"
    assert Spread.of([1.0, 3.0]).deviation == pytest.approx(math.sqrt(2))
    assert group_runs([]) == []


def test_charts():
    assert accuracy_chart([[10.0, 80.0, 90.0], [5.0, 85.0, 80.0]], "x").count("<polyline") == 3
    assert loss_chart([[0.0]], "x").count("<polyline") == 1, "a loss of zero has no logarithm"
    assert [tick_words(tick) for tick in (1, 0.003, 1e-4, 3e-12)] == ["1", "0.003", "10⁻⁴", "3·10⁻¹²"]


def test_a_loss_of_exactly_zero_lies_on_the_axis_of_a_logarithmic_chart():
    chart = ElementTree.fromstring(loss_chart([[0.5, 0.0]], "Loss"))
    (_, low), dots = (
        (point.split(",") for point in chart.find("polyline").get("points").split()),
        chart.findall("circle"),
    )
    assert [dots[1].get("cx"), dots[1].get("cy")] == low and float(low[1]) == 228.0


def test_the_first_epochs_do_not_stretch_the_picture_of_the_accuracy():
    """Eight in a hundred: of 50 epochs the first four. The rest, 74.5 to 86.5, is shown between 70 and 90."""
    chart = accuracy_chart([[10.0] * 4 + [74.5] + [86.5] * 45], "x")
    assert re.findall(r'text-anchor="end">([\d.]+)<', chart) == ["70", "75", "80", "85", "90"]


def test_of_a_cross_validation_n_counts_folds(tmp_path):
    """Four of five folds, one of them with a second seed, which is averaged with the first."""
    for fold, seed, last in ((1, 0, 80.0), (2, 0, 84.0), (3, 0, 82.0), (3, 1, 86.0), (4, 0, 78.0)):
        made = entry(T, [70.0, last], seed)
        made["recipe"] |= {"name": "paper+folds=5", "folds": 5, "fold": fold}
        enter(tmp_path, made, f"cifar10/mspcaps_t/paper+folds=5-fold{fold}-seed{seed}.json")
    enter(tmp_path, entry(T, [70.0, 99.0]))
    folded = next(group for group in read_groups(tmp_path) if group.folds)
    values = [80.0, 84.0, 84.0, 78.0]
    assert (folded.last.mean, folded.last.n) == (statistics.mean(values), 4)
    assert folded.last.deviation == pytest.approx(statistics.stdev(values))
    text = markdown(read_groups(tmp_path))
    row = cells(text, "mspcaps_t | paper+folds=5")
    assert row[2:4] == ["held-out", f"81.50 ± {statistics.stdev(values):.2f}"] and row[6] == "4 of 5 folds"
    assert "| 1, fold 3 | 86.00 |" in text
