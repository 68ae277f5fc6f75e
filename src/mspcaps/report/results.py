"""From the ledger to docs/results.md, the page, and what the README quotes."""

from pathlib import Path

from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically
from mspcaps.report import markdown, results_page
from mspcaps.report.conclusions import CLAIMS, groups_of, panels
from mspcaps.report.dots import dot_chart
from mspcaps.report.readme import quoted
from mspcaps.report.runs import read_again, read_ledger
from mspcaps.report.speed import read_benchmarks, render_speed
from mspcaps.report.tables import GENERATED, Report, build


def read_report(results: Path) -> Report:
    """Everything that a ledger folder tells."""
    return build(read_ledger(results), read_again(results))


def write_report(
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    page: Path = Path("runs/report/index.html"),
    readme: Path | None = None,
) -> Report:
    """Write the report as Markdown (the ablations beside it, with their pictures) and as a page, and what a
    README quotes between its marks."""
    report = read_report(results)
    beside = ablation_files(report) | {"speed.md": render_speed(results, report)}
    files = {out: markdown.render(report)} | {out.parent / name: text for name, text in beside.items()}
    for path in (path for path in files if path.suffix == ".md" and path.is_file()):
        if not path.read_text(encoding="utf-8", errors="replace").startswith(GENERATED):
            raise MspcapsError(
                f"{path} was not written by `mspcaps report`, which would overwrite it: choose another --out"
            )
    if readme:
        # a README without marks is refused before anything is written
        files[readme] = quoted(readme, report, read_benchmarks(results))
    for path, text in files.items():
        write_atomically(path, text)
    write_atomically(page, results_page.render(report))
    return report


def ablation_files(report: Report) -> dict[str, str]:
    """ablations.md and the pictures that it shows, by their names."""
    groups = groups_of(report.runs)
    charts = {f"ablations/{c.anchor}.svg": dot_chart(panels(c, groups), c.title) for c in CLAIMS}
    return {"ablations.md": markdown.render_ablations(groups, groups_of(report.again)), **charts}
