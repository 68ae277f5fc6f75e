"""The figure and the tables of docs/robustness.md say what the stored results say, however few there are."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mspcaps.evaluation.robustness import Caution, Curve, Point, Robustness, result_path, write_robustness
from reproduction.pages import render
from reproduction.robustness import Stability, read_attacks, values_of
from reproduction.studies import __path__ as folders
from reproduction.studies import attacks

N = 10_000


def points(*accuracies: float, eps: tuple[float, ...] = (0.01, 0.02, 0.03, 0.1)) -> tuple[Point, ...]:
    """The first images survive."""
    return tuple(Point(e, np.arange(N) < a * N / 100) for e, a in zip(eps, accuracies, strict=True))


def stored(folder: Path, model: str, *curves: Curve, n: int = N) -> None:
    curves = tuple(replace(c, points=tuple(Point(p.eps, p.survived[:n]) for p in c.points)) for c in curves)
    result = Robustness(
        model, f"{model}.cifar10", "0" * 64, "cifar10", 0, np.arange(N)[:n] < 0.9 * N, curves,
        (Caution("eps 0", "The model answers at random."),), {"device": "a machine"},
    )  # fmt: skip
    write_robustness(result_path(folder, result, None if n == N else n), result)


def block(folder: Path) -> str:
    return render("robustness.md.j2", {"robustness": values_of(folder)})


def test_no_results(tmp_path):
    assert "Nothing has been measured yet" in block(tmp_path) and values_of(tmp_path)["figure"] is None


def test_one_model_alone(tmp_path):
    stored(tmp_path, "mspcaps_t", Curve("fgsm", "margin", 1, 1, 0.25, points(60, 50, 40, 30)))
    text, values = block(tmp_path), values_of(tmp_path)
    assert (
        "`mspcaps_l` and `capsnet`" in text
        and "| MSPCaps-T | FGSM | margin loss | 25.0 % | 60.00 | 40.00 | 30.00 |" in text
    )
    assert values["figure"].count("<polyline") == 1 and values["sentences"] == [] and values["stability"] is None
    assert values["suite_table"] == ""


def test_all_three_models(tmp_path):
    for model, (flat, true) in {"mspcaps_l": (80, 5), "mspcaps_t": (40, 0), "capsnet": (50, 1)}.items():
        stored(
            tmp_path, model,
            Curve("bim", "margin", 10, 1, 0.5, points(flat, flat, flat, flat)),
            Curve("bim", "cw", 10, 1, 0.0, points(true, true, 30, true)),
            Curve("bim", "dlr", 10, 1, 0.0, points(20, 20, 20, 20)),
            Curve("bim", "cw", 50, 1, 0.0, points(0, 0, 0, 0)),  # not in the figure: other steps
        )  # fmt: skip
    text, values = block(tmp_path), values_of(tmp_path)
    assert values["figure"].count("<polyline") == 6 and values["missing"] == []
    assert "| MSPCaps-L | BIM-10 | strongest objective | 0.0 % | 5.00 | 20.00 | 5.00 |" in text
    stability = values["stability"]
    assert stability == Stability(n=N, margin=80, strongest=5, zero_gradients=50) and not stability.confirmed
    assert replace(stability, strongest=40.0).confirmed and "80.00 % of 10,000 images" in text
    second, third = values["sentences"]
    assert "40.00 %" in second and "50.00 %" in second and "1.00 %" in third
    assert text.count("The model answers at random.") == 3 and "a machine" in text


def test_strong_attacks(tmp_path):
    eps = tuple(level / 255 for level in (1, 2, 4, 8))
    high = tuple(Point(e, np.arange(N) >= N / 2) for e in eps[:2])  # the other half
    stored(
        tmp_path, "mspcaps_t",
        Curve("apgd", "cross_entropy", 100, 1, 0.0, points(60, 40, 20, 10, eps=eps)),
        Curve("apgd", "cross_entropy", 20, 1, 0.0, points(80, 80, 80, 80, eps=eps)),
        Curve("square", "cw", 1000, 1, None, high),
    )  # fmt: skip
    stored(tmp_path, "mspcaps_t", Curve("apgd", "cross_entropy", 100, 1, 0.0, points(1, 1, 1, 1, eps=eps)), n=N // 2)
    table = values_of(tmp_path)["suite_table"].splitlines()
    assert "| MSPCaps-T | 10,000 | APGD, cross-entropy, 100 steps | 90.00 | 60.00 | 40.00 | 20.00 | 10.00 |" in table
    assert "| MSPCaps-T | 10,000 | Square, 1,000 queries | 90.00 | 50.00 | 50.00 | – | – |" in table
    assert "| MSPCaps-T | 10,000 | **all of them** | 90.00 | 10.00 | 0.00 | 20.00 | 10.00 |" in table
    assert len(table) == 5 and [entry.n for entry in read_attacks(tmp_path)] == [N]


def test_the_study_attacks_what_is_missing(tmp_path):
    """The paper's figure first; capsule objectives not for ResNets; what is stored is not measured again."""
    models = {"mspcaps_t": "", "capsnet": "", "resnet20": ""}
    pieces = attacks.pieces(models)
    figure = [piece for piece in pieces if piece[2] == attacks.GRID]
    assert pieces[: len(figure)] == figure and {model for model, *_ in figure} == {"mspcaps_t", "capsnet"}
    assert {text for model, text, _ in pieces if model == "resnet20"} == {
        "apgd-100", "square-1000", "apgd-100:targeted_dlr"
    }  # fmt: skip
    assert {eps for _, text, budgets in pieces if text == "apgd-100" for eps in budgets} == {*attacks.BUDGETS}
    stored(tmp_path, "mspcaps_t", Curve("bim", "margin", 10, 1, 0.25, points(60, 50, eps=(0.01, 0.02))))
    (entry,) = read_attacks(tmp_path)
    assert attacks.is_done(entry, "bim-10:margin", (0.01, 0.02))
    assert not attacks.is_done(entry, "bim-10:margin", (0.01, 0.03)) and not attacks.is_done(None, "fgsm", (0.01,))
    assert not attacks.is_done(entry, "bim-20:margin", (0.01,)) and not attacks.is_done(entry, "bim-10:cw", (0.01,))


def test_pieces_of_earlier_weights_are_made_again(tmp_path: Path) -> None:
    stored(tmp_path, "mspcaps_t", Curve("fgsm", "margin", 1, 1, 0.0, points(60, eps=(0.01,))))
    (path,) = tmp_path.glob("robustness/*.json")
    (entry,) = read_attacks(tmp_path)
    known = attacks.read_stored(path, entry.weights_sha256)
    assert attacks.is_done(known, "fgsm:margin", (0.01,))
    assert attacks.read_stored(path, "1" * 64) is None and attacks.read_stored(tmp_path / "none.json", "") is None


@pytest.mark.slow
def test_what_a_gpu_runs_needs_no_command_line() -> None:
    """Machines with GPUs may have PyTorch and no tyro: Python calls `main` of the studies, and the sweep."""
    modules = [f"reproduction.studies.{path.stem}" for path in Path(folders[0]).glob("[!_]*.py")]
    assert len(modules) > 6
    code = f"import sys; sys.modules['tyro'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", f"{code}; import mspcaps.training.sweep, mspcaps.bench"], check=True)
