"""From the ledger to docs/results.md, the page, and the block of the README."""

from pathlib import Path

from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically
from mspcaps.report import markdown, results_page
from mspcaps.report.runs import read_ledger
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
    """Write the report as Markdown and as a page, and the block of a README between its marks."""
    report = read_report(results)
    quoting = quoted(readme, report) if readme else ""  # a README without marks is refused before anything is written
    write_atomically(out, markdown.render(report))
    write_atomically(page, results_page.render(report))
    if readme:
        write_atomically(readme, quoting)
    return report


def quoted(readme: Path, report: Report) -> str:
    """The text of the README as it should be."""
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MspcapsError(f"cannot read {readme}: {error}") from error
    return markdown.with_block(text, markdown.readme_block(report), str(readme))
