"""The report as Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from mspcaps.pages.grid import grid
from mspcaps.report.conclusions import CLAIMS, as_a_whole, comparisons, groups_of, in_short
from mspcaps.report.firm import firmness
from mspcaps.report.missed import MISSED, missed
from mspcaps.report.paper import TITLES
from mspcaps.report.runs import Group, Run
from mspcaps.report.speed import AGAIN_ANCHOR
from mspcaps.report.tables import (
    GENERATED,
    HEADS,
    HISTORY,
    INTERVAL,
    NEAR,
    NONE,
    Report,
    Table,
    comparison,
    history,
    notes,
    quoted_notes,
    with_n,
)

EMPTY = "The ledger has no runs yet."
WHERE = "Each run is one file of the ledger: `results/DATA/MODEL/RECIPE-seedN.json`."
FIRM = "How firm are the verdicts?"
CAVEATS = (
    "The paper's figures are best epochs and come without a spread.",
    "With three seeds an interval is wide, so an inconclusive effect may still exist.",
    "An interval in brackets compares a single run with several; the single run is assumed to have their spread.",
    "Intervals cover what other seeds might give, not what other test images might.",
    "Nearly all intervals rest on the same few runs of the full models, and none is corrected for multiple "
    "comparisons: of twenty comparisons without a real difference, one would seem clear.",
    "The initial scale of positions was chosen with the full T, which may favour it in its comparisons.",
)
RUN_HEADS = ("data", "model", "recipe", "seed", "last", "best", "best epoch", "seconds", "device", "commit", "weights")


def render(report: Report) -> str:
    """The whole report."""
    parts = [GENERATED, "", "# Results", "", *answer(report), "", "## How to read the tables", ""]
    parts += [f"- {note}" for note in notes(report)]
    for table in report.main:
        parts += ["", *section(table), "", *compared(table)]
    parts += missed_section(report)
    for table in report.ablations + report.beyond:
        parts += ["", *section(table)]
    if told := history(report):
        parts += ["", f"## {HISTORY}", "", *(f"- {one}" for one in told)]
    parts += ["", "## All runs", "", WHERE, "", *all_runs(report.runs)] if report.runs else []
    return "\n".join(parts) + "\n"


def render_ablations(groups: Mapping[str, Group], again: Mapping[str, Group]) -> str:
    """Every conclusion of the paper's ablations, and one question of our own, with what our runs say, and what their
    repeats reached."""
    compared = {claim: comparisons(claim, groups) for claim in CLAIMS}
    heads = ("comparison", "paper", "here", INTERVAL, "verdict")
    short = in_short(groups)
    parts = [
        GENERATED, "", "# Do the conclusions hold?", "", *([short, ""] if short else []),
        *grid(heads, [pair.cells for pairs in compared.values() for pair in pairs], right=(1, 2, 3)), "",
        "T and L are MSPCaps-T and MSPCaps-L, CAR is cross-agreement routing, DR dynamic routing. The paper draws four "
        "conclusions from its ablations on CIFAR-10. We test each with our own runs of the paper's recipe, on the "
        "accuracy of the last epoch ([all tables](results.md)). A conclusion holds in a comparison if the confidence "
        f"interval of the difference ({INTERVAL}; Welch's, from the spread over seeds) lies above zero; if it includes "
        "zero, the comparison is inconclusive.",
        "", "**Before you rely on a verdict:**", "", *(f"- {caveat}" for caveat in CAVEATS),
    ]  # fmt: skip
    if firm := firmness([pair for pairs in compared.values() for pair in pairs], again):
        parts += ["", f"**{FIRM}**", "", *(f"- {told}" for told in firm)]
    for claim in CLAIMS:
        said = f"{claim.says}."
        if claim.source:
            said = " ".join([f"The paper (Table {claim.source.number}): {said}", claim.source.note]).strip()
        parts += ["", f"## {claim.title}", "", said, "", f"![{claim.title}](ablations/{claim.anchor}.svg)", ""]
        parts += [f"- {pair}" for pair in compared[claim]]
        repeated = [
            f"{side.words} reaches {with_n(again[side.model].last)}" for side in claim.sides if side.model in again
        ]
        if repeated:
            each = f"[run by run](speed.md#{AGAIN_ANCHOR})"
            parts += ["", f"Repeated with the same seeds ({each}), {'; '.join(repeated)}."]
        if whole := as_a_whole(claim, compared[claim]):
            parts += ["", whole]
    return "\n".join(parts) + "\n"


def answer(report: Report) -> list[str]:
    """Does the paper reproduce? Its main figures, all figures, its conclusions."""
    if not report.runs:
        return [EMPTY]
    short = in_short(groups_of(report.runs))
    told = {
        "Full models": reached(report),
        "All figures": summary(report),
        "Conclusions": f"{short} [Details](ablations.md)." if short else "",
    }
    return [f"- **{topic}.** {text}" for topic, text in told.items() if text]


def reached(report: Report) -> str:
    """How many of the figures of the full models are reached."""
    rows = [(row, row.gap) for table in report.main for row in table.rows if row.gap is not None]
    short = [f"{TITLES[row.model]} on {row.setting[0]} is {-gap:.2f} points below" for row, gap in rows if gap < 0]
    if not rows:
        return ""
    return (
        f"The mean of our best epochs reaches {len(rows) - len(short)} of the paper's {len(rows)} figures for the full "
        f"models trained here{''.join(f'; {one}' for one in short)}."
    )


def summary(report: Report) -> str:
    """How much of the paper is trained."""
    if not report.runs:
        return EMPTY
    near, above, below = report.near_above_below
    ablated = sum(row.gap is not None and row.gap > NEAR and row.model not in TITLES for row in report.trained)
    kind = "an ablation" if ablated == 1 else "ablations"
    return (
        f"Trained so far: {len(report.trained)} of the paper's {len(report.paper_rows)} figures for MSPCaps; the "
        f"ledger has {len(report.runs)} runs in all. The mean of our best epochs is within half a point of {near} of "
        f"these figures, further above {above} ({ablated} of them {kind}) and further below {below}."
    )


def section(table: Table) -> list[str]:
    """Heading, table and where its data came from."""
    title = f"## {table.title}"
    if table.source:
        title += f" (Table {table.source.number} of the paper)"
    lines = [title, ""]
    if table.source and table.source.claim:
        lines += [f"The paper concludes: {table.source.claim}", ""]
    if table.source and table.source.note:
        lines += [table.source.note, ""]
    rows = [(*row.setting, *row.cells[:-1], code(row.command)) for row in table.rows]
    heads, first = (*table.heads, *HEADS), len(table.heads)
    shown = [i for i in range(len(heads)) if i < first or table.source or any(row[i] != NONE for row in rows)]
    figures = [place for place, i in enumerate(shown) if first <= i < first + 5]
    lines += grid([heads[i] for i in shown], [[row[i] for i in shown] for row in rows], right=figures)
    if table.provenances:
        lines += ["", "Data: " + " ".join(table.provenances)]
    return lines


def missed_section(report: Report) -> list[str]:
    if not (figures := missed(report)):
        return []
    parts = ["", f"## {MISSED}"]
    for one in figures:
        parts += [
            "",
            one.sentence,
            *(["", *(f"- {trial}" for trial in one.trials)] if one.trials else []),
            "",
            one.found,
        ]
    return parts


def compared(table: Table) -> list[str]:
    heads, rows = comparison(table)
    shown = [(f"**{cells[0]}**" if kind == "ours" else cells[0], *cells[1:]) for kind, cells in rows]
    text = " ".join(note.replace("*", "\\*", 1) if note[0] == "*" else note for note in quoted_notes(table))
    return [*grid(heads, escape_stars(shown), right=range(2, len(heads))), "", text]


def escape_stars(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """99.53* would begin an emphasis."""
    return [tuple(c if c.startswith("**") else c.replace("*", "\\*") for c in row) for row in rows]


def all_runs(runs: Sequence[Run]) -> list[str]:
    return grid(RUN_HEADS, [run_cells(run) for run in runs], right=(3, 4, 5, 6, 7))


def run_cells(run: Run) -> tuple[str, ...]:
    """In the order of RUN_HEADS; commit and sha256 in short."""
    commit = run.commit[:7] + ("-dirty" if run.commit.endswith("-dirty") else "") or NONE
    return (
        run.dataset, run.model, run.name, f"{run.seed}", f"{run.last:.2f}", f"{run.best:.2f}", f"{run.best_epoch}",
        f"{run.seconds:,.0f}", run.device, commit, run.sha256[:8] or NONE,
    )  # fmt: skip


def code(command: str) -> str:
    return f"`{command}`" if command else NONE
