"""From the ledger to docs/results.md, the page, and the block of the README."""

from pathlib import Path

from mspcaps.errors import MspcapsError
from mspcaps.files import around_marks, write_atomically
from mspcaps.report import markdown, results_page
from mspcaps.report.conclusions import CLAIMS, groups_of, lines
from mspcaps.report.dots import dot_chart
from mspcaps.report.runs import read_ledger
from mspcaps.report.speed import render_speed
from mspcaps.report.tables import Report, build


def read_report(results: Path) -> Report:
    """Everything that a ledger folder tells."""
    return build(read_ledger(results))


def write_report(
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    page: Path = Path("runs/report/index.html"),
    readme: Path | None = None,
) -> Report:
    """Write the report as Markdown (the ablations beside it, with their pictures) and as a page, and the block of a
    README between its marks."""
    report = read_report(results)
    quoting = quoted(readme, report) if readme else ""  # a README without marks is refused before anything is written
    write_atomically(out, markdown.render(report))
    for name, text in (ablation_files(report) | {"speed.md": render_speed(results)}).items():
        write_atomically(out.parent / name, text)
    write_atomically(page, results_page.render(report))
    if readme:
        write_atomically(readme, quoting)
    return report


def ablation_files(report: Report) -> dict[str, str]:
    """ablations.md and the pictures that it shows, by their names."""
    groups = groups_of(report.runs)
    charts = {f"ablations/{c.anchor}.svg": dot_chart(lines(c, groups), c.title) for c in CLAIMS}
    return {"ablations.md": markdown.render_ablations(groups), **charts}


def quoted(readme: Path, report: Report) -> str:
    """The text of the README as it should be."""
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MspcapsError(f"cannot read {readme}: {error}") from error
    before, after = around_marks(text, markdown.BEGIN, markdown.END, str(readme))
    return before + markdown.readme_block(report) + after
