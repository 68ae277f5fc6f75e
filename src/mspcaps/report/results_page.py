"""The report as one self-contained HTML page, in the design of the quickstart's page: no script, no request."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mspcaps.pages import skeleton, stylesheet
from mspcaps.report.conclusions import groups_of, in_short
from mspcaps.report.curves import accuracy_chart, loss_chart
from mspcaps.report.markdown import EMPTY, RUN_HEADS, run_cells
from mspcaps.report.missed import MISSED, missed
from mspcaps.report.paper import TITLES
from mspcaps.report.runs import Run
from mspcaps.report.tables import (
    HEADS,
    HISTORY,
    HISTORY_ANCHOR,
    NONE,
    NOT_TRAINED,
    PREDICTION,
    Report,
    Row,
    Table,
    comparison,
    history,
    notes,
    quoted_notes,
)
from mspcaps.training.recipe import measured_on

SHEET = Path(__file__).with_name("results.css")
FIGURES = len(HEADS) - 2  # training time and command stand below them
TITLE = "mspcaps · our runs and the paper's tables"
OWN_TITLE = "mspcaps · the runs in this ledger"
LEGEND = (
    '<b>Colour.</b> A difference is <span class="good">green</span> or <span class="bad">red</span> where the paper\'s '
    f"figure lies outside the {PREDICTION} for one more run of ours. Without colour it lies inside, or there is a "
    "single run."
)


def render(report: Report) -> str:
    first, ablations, own = ("".join(map(section, part)) for part in (report.main, report.ablations, report.beyond))
    title, runs = OWN_TITLE if only_own(report) else TITLE, all_runs(report.runs)
    if only_own(report):
        parts = [header(report), own, past(report), runs, reading(report), folded(first + ablations, report)]
    else:
        parts = [header(report), reading(report), first, short(report), ablations, own, past(report), runs]
    body = "".join(parts)
    return skeleton(title, stylesheet(SHEET), body)


def header(report: Report) -> str:
    head = f'<header><p class="overline">{escape(OWN_TITLE if only_own(report) else TITLE)}</p>'
    if not report.runs:
        return f"{head}<h1>{escape(EMPTY)}</h1></header>"
    figures = f"<b>{len(report.trained)}</b> of the paper's {len(report.paper_rows)} MSPCaps figures trained"
    near, above, below = report.near_above_below
    claim = f"{figures}: <b>{near}</b> within half a point, {above} above, {below} below."
    lead = "This compares the mean of our best epochs with the paper's best epoch."
    if only_own(report):
        runs = f"{len(report.runs)} {'run' if len(report.runs) == 1 else 'runs'}"
        claim, lead = f"<b>{runs}</b> beyond the paper's tables.", "Those tables are collapsed at the end of the page."
    short = in_short(groups_of(report.runs))
    concluded = f'<p class="lead">{prose(short)}</p>' if short else ""
    facts = [
        ("runs", f"{len(report.runs)}"),
        ("total training time", duration(sum(run.seconds for run in report.runs))),
        ("devices", ", ".join(sorted({run.device for run in report.runs}))),
        ("precision", ", ".join(sorted({run.precision for run in report.runs if run.precision})) or NONE),
    ]
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return (
        f'{head}<h1>{claim}</h1><p class="lead">{lead} Our main figure is the last epoch, not a chosen one.</p>'
        f'{concluded}<dl class="facts">{shown}</dl></header>'
    )


def only_own(report: Report) -> bool:
    """A ledger that has runs, but none of the paper's."""
    return bool(report.runs) and not any(row.group for table in report.main + report.ablations for row in table.rows)


def folded(tables: str, report: Report) -> str:
    told = f"The paper's tables: none of their {len(report.paper_rows)} figures is trained yet"
    return f'<details class="paper"><summary>{told}</summary>{tables}</details>'


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def reading(report: Report) -> str:
    accuracy, choices, best, *others = map(prose, notes(report))
    items = "".join(f"<li>{note}</li>" for note in (accuracy, choices, best, LEGEND, *others))
    return f'<section class="reading"><h2>How to read this</h2><ul>{items}</ul></section>'


def past(report: Report) -> str:
    items = "".join(f"<li>{prose(one)}</li>" for one in history(report))
    if not items:
        return ""
    return f'<section id="{HISTORY_ANCHOR}" class="reading"><h2>{HISTORY}</h2><ul>{items}</ul></section>'


def prose(text: str) -> str:
    """From the little Markdown of the notes. No line begins with a percent sign or with the rest of an option."""
    kept = re.sub(r"--\w+ \d", lambda found: f'<span class="keep">{found[0]}</span>', escape(text))
    kept = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", re.sub(r"`(.+?)`", r"<code>\1</code>", kept))
    return re.sub(r"\[([^]]+)\]\((#[^)]+)\)", r'<a href="\2">\1</a>', kept).replace(" %", "&nbsp;%")


def section(table: Table) -> str:
    """Heading, our rows beside the paper's, the baselines that the paper quotes, and the curves."""
    source = table.source
    over = f'<p class="overline">Table {source.number} of the paper</p>' if source else ""
    claim = f'<p class="note">The paper concludes: {escape(source.claim)}</p>' if source and source.claim else ""
    claim += f'<p class="note">{escape(source.note)}</p>' if source and source.note else ""
    data = f'<p class="note under">Data: {escape(" ".join(table.provenances))}</p>' if table.provenances else ""
    compared = baselines(table) if source and source.baselines else ""
    anchor = source.anchor if source else table.title.split()[0].lower().strip(",").replace("runs", "beyond")
    rows = "".join(row_html(row, table) for row in table.rows)
    heads = head_cells((*table.heads, *HEADS[:FIGURES]), len(table.heads))
    return (
        f'<section id="{anchor}">{over}<h2>{escape(table.title)}</h2>{claim}'
        f'<table class="rows"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{data}{compared}'
        f"{curves(table)}</section>"
    )


def short(report: Report) -> str:
    """Every figure of the main tables that is missed, and what was tried."""
    told = ""
    for one in missed(report):
        trials = "".join(f"<li>{prose(trial)}</li>" for trial in one.trials)
        told += f'<p class="note">{prose(one.sentence)}</p>'
        told += f"<ul>{trials}</ul>" if trials else ""
        told += f'<p class="note under">{prose(one.found)}</p>'
    return f'<section id="missed" class="reading"><h2>{MISSED}</h2>{told}</section>' if told else ""


def head_cells(heads: Sequence[str], left: int) -> str:
    """The first `left` columns are words, the others figures."""
    return "".join(
        f'<th scope="col"{"" if i < left else " class=num"}>{escape(head)}</th>' for i, head in enumerate(heads)
    )


def row_html(row: Row, table: Table) -> str:
    """Two lines: the figures; what made them and in what time. A narrow screen shows each figure with its heading."""
    named = [*zip(table.heads, row.setting, strict=True)]
    setting = "".join(f'<td data-head="{escape(head)}">{breakable(cell)}</td>' for head, cell in named)
    cells = ""
    *figures, time, command = row.cells
    for head, cell in zip(HEADS[:FIGURES], figures, strict=True):
        kind = "num"
        if cell in (NOT_TRAINED, NONE):
            kind += " faint"
        elif head == HEADS[1]:
            kind += " ours"
        elif head == HEADS[3]:
            kind += verdict(row)
        cells += f'<td class="{kind}" data-head="{escape(head)}">{unbroken(cell)}</td>'
    how = (f"<code>{escape(command)}</code>" if command else "") + (f"<span>{escape(time)}</span>" if row.group else "")
    width = len(table.heads) + FIGURES
    return f'<tr>{setting}{cells}</tr><tr class="how"><td colspan="{width}"><div>{how}</div></td></tr>'


def breakable(name: str) -> str:
    """The long name of a recipe may go on in the next line between its parts."""
    return re.sub(r"([+=,])", r"\1&#8203;", escape(name))


def verdict(row: Row) -> str:
    """The paper's figure is one run without a spread: what another run of ours might give as well gets no colour."""
    if row.further is None or not row.further.clear:
        return ""
    return " good" if row.further.gap > 0 else " bad"


def unbroken(cell: str) -> str:
    """A figure and its deviation stay together; what is in brackets may go to the next line."""
    parts = cell.replace(" (", "\n(").split("\n")
    return f'<span>{" ".join(f"""<span class="keep">{escape(part)}</span>""" for part in parts)}</span>'


def baselines(table: Table) -> str:
    heads, rows = comparison(table)
    body = "".join(
        f'<tr class="{kind}">'
        + "".join(f"<td{'' if i < 2 else ' class=num'}>{hanging(cell)}</td>" for i, cell in enumerate(cells))
        + "</tr>"
        for kind, cells in rows
    )
    note = f'<p class="note under">{escape(" ".join(quoted_notes(table)))}</p>'
    return (
        '<h3 class="beside">Next to the paper\'s baselines</h3><div class="wide"><table class="plain"><thead><tr>'
        f"{head_cells(heads, 2)}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def hanging(cell: str) -> str:
    """The asterisk beside the column, so that the digits stay below each other."""
    if cell == NOT_TRAINED:
        return f'<span class="faint">{cell}</span>'
    return escape(cell).replace("*", '<span class="star">*</span>')


def curves(table: Table) -> str:
    """Loss and accuracy of every trained row; those of the ablations are folded away."""
    main = table.source is not None and bool(table.source.baselines)
    # the full models stand in every ablation, but their curves are shown once
    shown = [row for row in table.rows if row.group and (main or row.figure is None or row.model not in TITLES)]
    figures = "".join(map(curve_pair, shown))
    if not figures:
        return ""
    opened = " open" if main else ""
    return (
        f"<details{opened}><summary>Curves</summary>"
        '<p class="note">Thin lines are single seeds, the thick one is their mean. The first epochs lie below the '
        f"range of the accuracy plot.</p>{figures}</details>"
    )


def curve_pair(row: Row) -> str:
    assert row.group is not None
    runs, name = row.group.runs, f"{row.model} on {row.dataset}"
    loss = loss_chart([run.losses for run in runs], f"Loss of {name}")
    paper = row.figure.accuracy if row.figure else None
    measured = measured_on(runs[0].recipe["held_out"])
    accuracy = accuracy_chart([run.accuracies for run in runs], f"{measured.capitalize()} accuracy of {name}", paper)
    title = row.setting[0] if len(row.setting) == 1 else " · ".join(dict.fromkeys((row.model, *row.setting[1:])))
    return (
        f'<h3 class="of">{escape(title)}</h3><div class="pair">'
        f"<figure><h3>Accuracy on the {measured} images, in percent</h3>{accuracy}</figure>"
        f"<figure><h3>Loss on the training images, logarithmic</h3>{loss}</figure></div>"
    )


def all_runs(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    several = len({run.device for run in runs}) > 1  # of one the facts at the top tell
    heads = [head for head in RUN_HEADS if head != "device" or several]
    numbers = RUN_HEADS[3:8]

    def shown(head: str, cell: str) -> str:
        text = f'<span class="long">{breakable(cell)}</span>' if head == "recipe" else escape(cell)
        return f"<td{' class=num' if head in numbers else ''}>{text}</td>"

    body = ""
    for run in runs:
        cells = dict(zip(RUN_HEADS, run_cells(run), strict=True))
        body += f"<tr>{''.join(shown(head, cells[head]) for head in heads)}</tr>"
    titles = "".join(f'<th scope="col"{" class=num" if head in numbers else ""}>{escape(head)}</th>' for head in heads)
    return (
        '<section id="runs"><h2>All runs</h2><p class="note">Every entry of the ledger, with the commit it was trained '
        'at and the first digits of its weights\' sha256.</p><div class="wide"><table class="plain small"><thead><tr>'
        f"{titles}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )
