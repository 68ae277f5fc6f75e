"""What a README quotes from the ledger: its opening and the rows of the full models, each between two marks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspcaps.bench.tables import number
from mspcaps.errors import MspcapsError
from mspcaps.files import reason, split_at_markers
from mspcaps.pages.grid import grid
from mspcaps.report.conclusions import groups_of, in_short
from mspcaps.report.markdown import EMPTY, reached
from mspcaps.report.paper import TITLES
from mspcaps.report.tables import GENERATED, Report, Row, notes

OPENING, TABLE = "report:opening", "report:main"
FIRST = "CIFAR-10"  # the data set that the opening speaks of


def quoted(readme: Path, report: Report, benchmarks: Sequence[dict[str, Any]]) -> str:
    """The text of the README as it should be."""
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise MspcapsError(f"cannot read {readme}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise MspcapsError(f"cannot read {readme}: {error}") from error
    for name, lines in ((OPENING, opening(report, benchmarks)), (TABLE, table(report))):
        begin, end = marks(name)
        before, after = split_at_markers(text, begin, end, str(readme))
        text = before + "\n".join([begin, GENERATED, "", *(lines if report.runs else [EMPTY]), "", end]) + after
    return text


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def opening(report: Report, benchmarks: Sequence[dict[str, Any]]) -> list[str]:
    """A list of what was reached: accuracy, conclusions, speed."""
    told = {
        "Accuracy": (accuracy(report), "results"),
        "Conclusions": (in_short(groups_of(report.runs)), "ablations"),
        "Speed": (speed(benchmarks), "speed"),
    }
    return [f"- **[{topic}](docs/{page}.md).** {text}" for topic, (text, page) in told.items() if text]


def accuracy(report: Report) -> str:
    rows = [row for table in report.main for row in table.rows if row.setting[0] == FIRST and row.group and row.figure]
    if not rows:
        return reached(report)
    figures = [f"{row.cells[2]} % with {TITLES[row.model]} (paper: {row.cells[0]})" for row in rows]
    seeds = " and ".join(str(n) for n in sorted({row.group.best.n for row in rows if row.group}))
    return (
        f"{FIRST}: {' and '.join(figures)}, as mean ± standard deviation over {seeds} seeds of the best test epoch, "
        f"which is what the paper reports. {reached(report)}"
    )


def speed(benchmarks: Sequence[dict[str, Any]]) -> str:
    """Of training, on the first of the GPUs."""
    trained = [r for r in benchmarks if r["what"] == "train" and "CPU" not in r["environment"]["device"]]
    device = trained[0]["environment"]["device"] if trained else ""
    ratios = [
        f"{number(result['ratios']['ours_vs_reference'])} times ({TITLES.get(result['model'], result['model'])})"
        for result in trained
        if result["environment"]["device"] == device
    ]
    return f"On one {device}, training is {' and '.join(ratios)} as fast as eager fp32 PyTorch." if ratios else ""


def table(report: Report) -> list[str]:
    """The rows of the full models in a few columns, and how to read them."""
    heads = ("model", "data", "ours, last epoch", "ours, best epoch", "paper, best epoch", "parameters", "training")
    rows = [row_cells(row) for table in report.main for row in table.rows]
    provenances = sorted({line for table in report.main for line in table.provenances})
    accuracy, choices, *_ = (note.replace("](#", "](docs/results.md#") for note in notes(report))
    lines = [*grid(heads, rows, right=(2, 3, 4, 5)), "", accuracy, "", choices]
    return [*lines, "", "Data: " + " ".join(provenances)] if provenances else lines


def row_cells(row: Row) -> tuple[str, ...]:
    printed, last, best, _, parameters, time, _ = row.cells
    return (f"`{row.model}`", row.setting[0], last, best, printed, parameters, time)
