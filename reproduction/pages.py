"""The pages and blocks generated from results/: templates filled with figures and tables."""

import re
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import jinja2

from mspcaps.bench import tables as bench_tables
from mspcaps.bench.result import KINDS, read_result
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.health import IMAGES_ELSEWHERE, LEAST_ENTROPY, MOST_TOP
from mspcaps.pages import markdown_table
from mspcaps.report.runs import Group, Spread
from mspcaps.report.write import RUN_FIGURES, RUN_HEADS, run_rows
from reproduction import claims, paper, robustness
from reproduction.baselines import Baselines, accuracy_table, charts, cost_table, short_table
from reproduction.collapse import study_collapse
from reproduction.dots import dot_chart, scatter_chart
from reproduction.lacaps import lacaps_values
from reproduction.own_pictures import picture_values
from reproduction.pose import pose_values
from reproduction.scale import scale_values
from reproduction.significance import Difference, signed
from reproduction.study_tables import (
    NONE,
    candidates_table,
    drop_empty,
    figures,
    int8_table,
    judge,
    methods_table,
    named_table,
    read_ensembles,
    read_explanations,
    read_int8,
    with_n,
)
from reproduction.tables import NEAR, Report, Row, Table, Trial, binomial_error, read_report, trials_of

ROOT = Path(__file__).parent.parent
GENERATED = "<!-- Written by `make regenerate` from results/. Do not edit: a test compares the two. -->"
FIRST = "paper+initial_scale=positions0.02"  # today's name of the first runs of 300 epochs
SHARING = 6  # number of the paper's table
PLURAL = {"holds": "hold", "holds in part": "hold in part", "is not confirmed": "are not confirmed"}
Compared = Mapping[claims.Claim, Sequence[claims.Comparison]]
HEADS = ("paper", "ours, last epoch", "ours, best epoch", "best − paper", "parameters", "training", "command")


def pages(results: Path) -> dict[Path, str]:
    """Everything generated from `results`: pages and plots of docs/, and the pages that have generated blocks."""
    report = read_report(results)
    values = values_of(report, results)
    docs, names = ROOT / "docs", ("results", "baselines", "ablations", "speed")
    files = {docs / f"{name}.md": render(f"{name}.md.j2", values) for name in names}
    files |= {docs / "baselines" / name: chart for name, chart in values["baseline_charts"].items()}
    for claim in claims.CLAIMS:
        chart = dot_chart(claims.panels(claim, report.compared), claim.title)
        files[docs / "ablations" / f"{claim.anchor}.svg"] = chart
    if study := values["collapse"]:
        axes = ("entropy of the second block's couplings, 1 is uniform", "accuracy after the last epoch (percent)")
        chart = scatter_chart(study.points, axes, "Accuracy against the entropy of the second routing block")
        files[docs / "ablations" / "collapse.svg"] = chart
    files |= {docs / "robustness" / f"shifts-{one.dataset}.svg": one.chart for one in values["shifted"]}
    if chart := values["robustness"]["figure"]:
        files[docs / "robustness.svg"] = chart
    if chart := values["lacaps"]["pixel_chart"]:
        files[docs / "lacaps.svg"] = chart
    for name, blocks in {
        "docs/robustness.md": {"robustness": "robustness", "shifts": "shifts"},
        "docs/explain.md": {"faithfulness": "faithfulness"},
        "docs/export.md": {"int8": "int8"},
        "docs/lacaps.md": {"lacaps": "lacaps"},
        "docs/own_data.md": {"own_pictures": "own_pictures"},
        "docs/scale.md": {"scale": "scale"},
        "README.md": {"report:opening": "readme_opening", "report:main": "readme_table"},
    }.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for mark, template in blocks.items():
            text = with_block(text, mark, render(f"{template}.md.j2", values), name)
        files[ROOT / name] = text
    return files


def with_block(text: str, mark: str, block: str, where: str, generated: str = GENERATED) -> str:
    """The text with a new block between its two markers."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise MspcapsError(f"{where} must hold {begin} and, after it, {end}, each once: the text between is generated")
    before, after = text[: text.index(begin)], text[text.index(end) + len(end) :]
    return f"{before}{begin}\n{generated}\n\n{block.strip()}\n\n{end}{after}"


def render(template: str, values: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, autoescape=False,
    )  # fmt: skip
    environment.filters["listed"] = listed
    environment.filters["capitalized"] = lambda text: text[0].upper() + text[1:]
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(values)).strip() + "\n"


def values_of(report: Report, results: Path) -> dict[str, Any]:
    """What the templates are filled with."""
    compared, before = claims.compare(report.compared), claims.compare(claims.first_seeds(report.compared))
    pairs = [pair for of_claim in compared.values() for pair in of_claim]
    judged: dict[str, list[str]] = {}
    for claim, of_claim in compared.items():
        if claim.table and (verdict := claims.verdict_on(of_claim)):
            judged.setdefault(verdict, []).append(claim.title)
    pooled, benchmarks = claims.pool(pairs), read_benchmarks(results)
    baselines = Baselines(report, benchmarks)
    full = [row for row in report.main_rows if row.gap is not None]
    above = [row for row in report.trained if row.gap is not None and row.gap > NEAR]
    rows = sorted((row for row in report.paper_rows if row.gap is not None), key=lambda row: not row.missed)
    first = next((g for g in report.tested if (g.first.name, g.first.dataset) == (FIRST, "cifar10")), None)
    return {
        "generated": GENERATED, "report": report, "titles": paper.TITLES,
        "full": full, "cifar10": [row for row in full if row.dataset == "cifar10"],
        "ablations_above": sum(row.model not in paper.TITLES for row in above),
        "missed": [(row, trials) for row in rows if (trials := trials_of(row, report)) or row.missed],
        "first": first, "first_figure": paper.figure_of("mspcaps_t", "cifar10"),
        "compared": compared, "judged": {verdict: judged[verdict] for verdict in PLURAL if verdict in judged},
        "plural": PLURAL, "smaller": claims.smaller_gaps(pairs), "verdict_on": claims.verdict_on,
        "corrected": [pair for pair in pairs if pair.corrected is not None],
        "surpassing": [pair for pair in pairs if not pair.claim.table and not pair.claim.untested and pair.reversed],
        "pooled": pooled,
        "pooled_kept": [pair.words for pair in compress(pooled.pairs, pooled.significant)] if pooled else [],
        "collapse": study_collapse(report.compared), "rule": (LEAST_ENTROPY, MOST_TOP),
        "health_images": IMAGES_ELSEWHERE, "training_losses": training_losses(report.compared),
        "t": row_of_t(report), "sharing_gap": next(p.difference for p in pairs if p.claim.table == SHARING),
        "t_rows": t_rows(report), "seeds": seeds_of(report.compared), "verdicts": verdicts(before, compared),
        "repeats": claims.repeat_differences(report.compared), "together": claims.seed_correlations(pairs),
        "later": claims.later_seeds(report.compared), "later_table": later_table,
        "benchmarks": [  # the cost per pixel is in docs/lacaps.md
            (result, *bench_tables.result_tables(result)) for result in benchmarks if result["what"] != "pixels"
        ],
        "fastest": fastest(benchmarks), **scale_values(fastest(benchmarks)),
        "robustness": robustness.values_of(results), "own_pictures": picture_values(results),
        "lacaps": lacaps_values(report, baselines),
        "entries": read_explanations(results), "int8": read_int8(results), "ensembles": read_ensembles(results),
        "baselines": baselines, "baseline_charts": charts(baselines), "accuracy_table": accuracy_table,
        "cost_table": cost_table, "short_table": short_table(baselines), "numbers": numbers,
        "table_of": table_of, "trial_table": trial_table,
        "runs_table": markdown_table(RUN_HEADS, run_rows(report.groups, repeats=False), RUN_FIGURES),
        "comparison_table": comparison_table(pairs), "repeats_table": repeats_table(report),
        "readme_grid": readme_grid(report), "named_table": named_table, "methods_table": methods_table,
        "candidates_table": candidates_table, "int8_table": int8_table,
        "grid": lambda heads, rows, left: markdown_table(heads, rows, range(left, len(heads))),
        "signed": signed, "with_n": with_n, "binomial_error": binomial_error, "number": bench_tables.number,
        "judge": judge, "figures": figures, **pose_values(report, results),
    }  # fmt: skip


def listed(words: Sequence[str], form: str = "%s") -> str:
    """a, b and c"""
    *first, last = [form % word for word in words]
    return f"{', '.join(first)} and {last}" if first else last


# Seeds


def row_of_t(report: Report) -> Row | None:
    """MSPCaps-T on CIFAR-10, if it has runs."""
    rows = report.main_rows
    return next((r for r in rows if (r.model, r.dataset) == ("mspcaps_t", "cifar10") and r.group), None)


def t_rows(report: Report) -> list[tuple[str, ...]]:
    """Its accuracy after the last epoch and after the best."""
    row, rows = row_of_t(report), list[tuple[str, ...]]()
    if not (row and row.group and row.figure):
        return rows
    for which in ("last", "best"):
        spread, seeds = getattr(row.group, which), row.group.seeds(which)
        deviation = f"{spread.deviation:.2f}" if spread.deviation is not None else NONE
        gap = signed(round(spread.mean, 2) - row.figure.accuracy)
        ends = (f"{min(seeds):.2f}", f"{max(seeds):.2f}")
        rows.append((which, str(spread.n), f"{spread.mean:.2f}", deviation, *ends, f"{row.figure.accuracy:.2f}", gap))
    return rows


def seeds_of(groups: Mapping[str, Group]) -> dict[str, Any]:
    """Models with fewer than ten seeds: those planned to have ten, and the rest."""
    few = {model: group.last.n for model, group in groups.items() if group.last.n < claims.SEEDS}
    planned = {model: few[model] for model in claims.PLANNED if model in few}
    rest = {model: n for model, n in few.items() if model not in planned}
    return {"goal": claims.SEEDS, "few": planned, "rest": rest, "planned": claims.PLANNED}


def verdicts(before: Compared, now: Compared) -> dict[str, Any]:
    """The verdicts with the first seeds and with all, for every comparison that has more than the first."""
    pairs = [
        (first, last)
        for firsts, lasts in zip(before.values(), now.values(), strict=True)
        for first, last in zip(firsts, lasts, strict=True)
        if first.difference and last.difference
    ]
    grown = [(first, last) for first, last in pairs if numbers(first) != numbers(last)]
    rows = [(last.words, numbers(first), first.verdict, numbers(last), last.verdict) for first, last in grown]
    heads = ("comparison", "seeds then", "verdict then", "seeds now", "verdict now")
    return {
        "table": markdown_table(heads, rows) if rows else "",
        "same": len(pairs) - len(grown), "changed": sum(first.verdict != last.verdict for first, last in grown),
        "holm": [sum(bool(pair[i].corrected) for pair in pairs) for i in (0, 1)],
        "uncorrected": [sum(pair[i].holds or pair[i].reversed for pair in pairs) for i in (0, 1)],
        "judged": [sum(pair[i].corrected is not None for pair in pairs) for i in (0, 1)],
    }  # fmt: skip


def numbers(pair: claims.Comparison) -> str:
    """3 and 10: the seeds of both sides."""
    return " and ".join(str(group.last.n) for group in (pair.a, pair.b) if group)


def training_losses(groups: Mapping[str, Group]) -> dict[str, Any]:
    """Training loss and test accuracy of networks with shared and with own vote weights."""
    sharing = next(claim for claim in claims.CLAIMS if claim.table == SHARING)
    losses = {
        model: Spread.of([run.curve["loss"][-1] for run in groups[model].runs])
        for pair in sharing.pairs
        for model in pair
        if model in groups
    }
    rows = []
    for model, loss in losses.items():
        spread = f" ± {loss.deviation:#.2g}" if loss.deviation is not None else ""
        rows.append((sharing.words[model], f"{loss.mean:#.2g}{spread} (n = {loss.n})", with_n(groups[model].last)))
    pair = [losses.get(model) for model in sharing.pairs[0]]
    return {
        "table": markdown_table(("network", "training loss, last epoch", "test accuracy, last epoch"), rows, (1, 2)),
        "loss": Difference.of(*pair) if all(pair) else None,  # type: ignore[arg-type]
    }


# The paper's tables and ours


def cells(row: Row) -> tuple[str, ...]:
    """In the order of HEADS."""
    ours: tuple[str, ...] = ("not trained yet", NONE, NONE)
    if row.group:
        ours = (with_n(row.group.last), str(row.group.best), signed(row.gap) if row.gap is not None else NONE)
    return (
        f"{row.figure.accuracy:.2f}" if row.figure else NONE, *ours, f"{row.params:,}",
        row.group.training_time if row.group else NONE, f"`mspcaps train {row.recipe}`" if row.recipe else NONE,
    )  # fmt: skip


def table_of(table: Table) -> str:
    """Heading, notes and rows; only a table of the paper keeps columns that are empty."""
    source = table.source
    title = f"## {table.title}" + (f" (Table {source.number} of the paper)" if source else "")
    notes = []
    if source and source.claim:
        anchor = next(claim.anchor for claim in claims.CLAIMS if claim.table == source.number)
        words = "what else differs between the rows, and our verdict" if source.note else "our verdict"
        notes = [f"The paper concludes: {source.claim} ([{words}](ablations.md#{anchor}))."]
    heads, rows = [*table.heads, *HEADS], [[*row.setting, *cells(row)] for row in table.rows]
    if not source:
        heads, rows = drop_empty(heads, rows)
    right = [i for i, head in enumerate(heads) if head in HEADS and head not in ("training", "command")]
    return "\n\n".join([title, *notes, markdown_table(heads, rows, right)])


def trial_table(trials: Sequence[Trial]) -> str:
    heads = ("change", "accuracy", "unchanged recipe", "difference", "95 % CI", "epochs", "images")
    rows = []
    for trial in trials:
        recipe, difference = trial.group.first.recipe, trial.difference
        cells = ("not measured", NONE, NONE)
        if trial.base and difference:
            cells = (with_n(trial.base.last), signed(difference.gap), difference.cell)
        budget = (f"{recipe['epochs']}", f"{recipe['held_out']:,}")
        rows.append((trial.words, with_n(trial.group.last), *cells, *budget))
    return markdown_table(heads, rows, range(1, len(heads)))


def readme_grid(report: Report) -> str:
    heads = ("model", "data", "ours, last epoch", "ours, best epoch", "paper, best epoch", "parameters", "training")
    rows = []
    for row in report.main_rows:
        figure, last, best, _, parameters, time, _ = cells(row)
        rows.append((f"`{row.model}`", row.setting[0], last, best, figure, parameters, time))
    return markdown_table(heads, rows, (2, 3, 4, 5))


def comparison_table(pairs: Sequence[claims.Comparison]) -> str:
    rows = []
    for pair in pairs:
        difference = pair.difference
        paper_gap = signed(pair.printed[0] - pair.printed[1]) if pair.printed else NONE
        ours = (signed(difference.gap), difference.cell) if difference else (NONE, NONE)
        rows.append((pair.words, paper_gap, *ours, pair.verdict))
    return markdown_table(("comparison", "paper", "here", "95 % CI", "verdict"), rows, (1, 2, 3))


def later_table(later: Sequence[tuple[str, Spread, Spread, Difference]]) -> str:
    rows = [(f"`{model}`", with_n(a), with_n(b), signed(d.gap), d.cell) for model, a, b, d in later]
    return markdown_table(("model", "first three seeds", "later seeds", "difference", "95 % CI"), rows, range(1, 5))


def repeats_table(report: Report) -> str:
    """Accuracies of repeated runs beside those of the first."""
    rows = []
    for group in report.groups:
        for other in group.repeats:
            first = next((run for run in group.runs if run.seed == other.seed), None)
            if first is None:
                raise MspcapsError(f"{other.model}, {other.name}, seed {other.seed} repeats no run of the ledger")
            name = f"`{other.model}`, {other.dataset}, {other.recipe['epochs']} epochs, seed {other.seed}"
            accuracies = [f"{run.engine}, {run.precision}: {run.accuracy.last:.2f}" for run in (first, other)]
            images = "held-out" if other.recipe["held_out"] else "test"
            rows.append((name, images, *accuracies, signed(first.accuracy.last - other.accuracy.last)))
    heads = ("run", "images", "first run", "repeat", "difference")
    return markdown_table(heads, rows, (2, 3, 4)) if rows else "None yet."


# Speed


def read_benchmarks(results: Path) -> list[dict[str, Any]]:
    """All measurements by kind, GPUs before CPUs, small models first."""

    def order(result: dict[str, Any]) -> tuple[int, bool, bool, str]:
        on_cpu = "CPU" in result["environment"]["device"]
        return KINDS.index(result["what"]), on_cpu, result["model"] != "mspcaps_t", result["model"]

    benchmarks = [read_result(path) for path in sorted((results / "bench").glob("*.json"))]
    return sorted((result for result in benchmarks if not result["quick"]), key=order)


def fastest(benchmarks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Training on the first GPU."""
    trained = [r for r in benchmarks if r["what"] == "train" and "CPU" not in r["environment"]["device"]]
    return [r for r in trained if r["environment"]["device"] == trained[0]["environment"]["device"]]
