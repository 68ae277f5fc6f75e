"""What a README quotes: its opening and its table, each between its marks, and nothing else of it is touched."""

import pytest
from ledger_makers import enter_three_seeds

from mspcaps.errors import MspcapsError
from mspcaps.report import markdown
from mspcaps.report.readme import OPENING, TABLE, marks, opening, quoted, speed
from mspcaps.report.results import read_report, write_report

BLOCKS = [marks(OPENING), marks(TABLE)]
README = "before\n{}\nold\n{}\nbetween\n{}\nold\n{}\nafter\n".format(*BLOCKS[0], *BLOCKS[1])


@pytest.fixture
def ledger(tmp_path):
    """T on CIFAR-10 with three seeds."""
    enter_three_seeds(tmp_path / "results")
    return tmp_path / "results"


def measured(model, device, ratio, what="train"):
    return {"what": what, "model": model, "environment": {"device": device}, "ratios": {"ours_vs_reference": ratio}}


def test_both_blocks_are_written_between_their_marks(ledger, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(README)
    write_report(ledger, tmp_path / "out.md", tmp_path / "page.html", readme)
    text = readme.read_text()
    assert "old" not in text
    assert text.startswith(f"before\n{BLOCKS[0][0]}\n") and f"{BLOCKS[0][1]}\nbetween\n{BLOCKS[1][0]}\n" in text
    assert text.endswith(f"{BLOCKS[1][1]}\nafter\n")
    assert "| `mspcaps_t` | CIFAR-10 | 88.40 ± 0.26 (n = 3) | 88.80 ± 0.10 | 88.71 | 344,320 | 110 s, a GPU |" in text
    assert quoted(readme, read_report(ledger), []) == text, "written twice it is the same"
    readme.write_text(text.replace("88.80", "89.80"))
    assert quoted(readme, read_report(ledger), []) == text, "what was edited by hand is told"


@pytest.mark.parametrize("text", ["", *(README.replace(mark, "") for block in BLOCKS for mark in block), 2 * README])
def test_a_readme_without_its_marks_is_refused_before_anything_is_written(text, ledger, tmp_path):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(MspcapsError, match="must hold"):
        write_report(ledger, tmp_path / "out.md", tmp_path / "page.html", tmp_path / "README.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "results"]


def test_an_empty_ledger_is_told_in_both(tmp_path):
    (tmp_path / "README.md").write_text(README)
    assert quoted(tmp_path / "README.md", read_report(tmp_path), []).count(markdown.EMPTY) == 2


def test_the_opening_tells_figures_with_the_number_of_seeds(ledger):
    (told,) = opening(read_report(ledger), [])
    assert told.startswith(
        "- **[Accuracy](docs/results.md).** CIFAR-10: 88.80 ± 0.10 % with MSPCaps-T (paper: 88.71), as mean ± standard "
        "deviation over 3 seeds of the best test epoch, which is what the paper reports."
    )


def test_the_opening_tells_the_speed_of_training_on_one_gpu():
    h200 = [measured("mspcaps_t", "H200", 24.571), measured("mspcaps_l", "H200", 4.607)]
    others = [measured("mspcaps_t", "A100", 9.0), measured("mspcaps_t", "x86_64 CPU", 1.5)]
    said = "On one H200, training is 24.6 times (MSPCaps-T) and 4.61 times (MSPCaps-L) as fast as eager fp32 PyTorch."
    assert speed(h200 + others) == said
    assert speed(others[1:]) == speed([]) == ""
    assert speed([measured("mspcaps_t", "H200", 2.0, "infer")]) == ""
