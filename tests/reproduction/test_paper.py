"""What reproduction/paper.toml says the paper says, against the paper's own source where it is at hand."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mspcaps.training import list_recipes
from reproduction import paper
from reproduction.tables import cost_of

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "mspcaps.tex"
SIGNS = (
    (r"\checkmark", "yes"), (r"\ding{55}", "no"), (r"$^{\dag}$", "†"), (r"$\times$", "×"), (r"$4 \times $", "4 × "),
    (r"$2 \times $", "2 × "), ("(", ""), (")", ""),
)  # fmt: skip
FIGURES = [figure for table in paper.TABLES for figure in table.figures]


def printed_tables() -> dict[str, tuple[int, list[list[str]]]]:
    """label -> (number, rows of cells) of every table in the source, its marks in plain letters."""
    found = {}
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", SOURCE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for number, text in enumerate(tables, start=1):
        (label,) = re.findall(r"\\label\{(.*?)\}", text)
        (body,) = re.findall(r"\\begin\{tabular\}\{.*?\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL)
        rows, variant = [], ""
        for line in re.sub(r"\\(hline|midrule)|%", "", body).split(r"\\")[1:]:
            if not line.strip():
                continue
            for sign, plain in SIGNS:
                line = line.replace(sign, plain)
            cells = [re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).strip() for cell in line.split("&")]
            if begins := re.fullmatch(r"\\multirow\{\d\}\{\*\}\{(.*?)\}", cells[0]):
                variant = begins[1]
            rows.append([variant if not cells[0] or begins else cells[0], *cells[1:]])
        found[label] = number, rows
    return found


@pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not beside this checkout")
@pytest.mark.parametrize("table", paper.TABLES, ids=lambda table: table.label)
def test_every_cell_is_the_papers(table):
    number, rows = printed_tables()[table.label]
    assert table.number == number
    if table in paper.MAIN:
        ours = {figure.dataset: f"{figure.accuracy:.2f}" for figure in table.figures}
        name, params = paper.TITLES[table.figures[0].model], table.figures[0].params
        stated = [[b.network, b.params, *b.accuracy] for b in table.baselines]
        stated.append([name, params, *(ours[d] for d in table.datasets)])
    else:
        stated = [[*figure.setting, figure.params, f"{figure.accuracy:.2f}"] for figure in table.figures]
    assert stated == rows


@pytest.mark.parametrize("figure", sorted({(f.model, f.dataset, f.params) for f in FIGURES}), ids="-".join)
def test_our_models_have_the_papers_parameters(figure):
    """The paper truncates; its one column of parameters holds for images of three channels."""
    model, _, params = figure
    unit, digits = {"K": 1e3, "M": 1e6}[params[-1]], params[:-1]
    cut = int(cost_of(model).params / unit * 10) / 10
    assert f"{cut:.1f}" == digits


def test_the_comment_of_a_recipe_names_the_right_table_and_figure():
    printed = {(t.number, f.model, f.dataset): f"{f.accuracy:.2f}" for t in paper.TABLES for f in t.figures}
    for table in paper.TABLES:
        for row in table.baselines:
            cells = zip(table.datasets, row.accuracy, strict=True)
            printed |= {(table.number, row.model, dataset): cell.rstrip("*") for dataset, cell in cells}
    checked = 0
    for path in (Path(__file__).parents[2] / "recipes" / "paper").glob("*/*.toml"):
        if comment := re.match(r"# Table (\d), .*?: ([\d.]+) %", path.read_text(encoding="utf-8")):
            assert printed[int(comment[1]), path.stem, path.parent.name] == comment[2], path
            checked += 1
    assert checked == 32


def test_a_figure_is_the_same_wherever_it_is_printed():
    assert (
        max(
            Counter(
                (f.model, f.dataset) for f in {(f.model, f.dataset, f.accuracy): f for f in FIGURES}.values()
            ).values()
        )
        == 1
    )


def test_every_figure_has_a_recipe():
    assert {f"paper/{f.dataset}/{f.model}" for f in FIGURES} <= set(list_recipes())


def test_what_the_paper_does_not_have():
    assert paper.figure_of("mspcaps_t", "fashionmnist") is None
    assert paper.figure_of("mspcaps_t", "cifar10").accuracy == 88.71
