"""What the studies measured, as tables: the faithfulness of explanations, and int8 beside fp32."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mspcaps.files import NUMBER, format_bytes, read_form
from mspcaps.pages import markdown_table
from mspcaps.report.runs import Spread

METHODS = {
    "part_whole": "part-whole heat map",
    "gradient": "gradient, absolute",
    "input_gradient": "input times gradient, absolute",
    "random": "random order",
    "part_whole_second": "part-whole heat map of the runner-up",
    "part_whole_other": "part-whole heat map of another image",
    "gradient_other": "gradient of another image",
}
PATCHES = {
    "all": "all outlined patches",
    "coarse": "the outlined coarse patch",
    "mid": "the outlined middle patches",
    "fine": "the outlined fine patch in each of these",
    "mid_adds": "for comparison: the middle patches that contribute most to the middle capsule",
    "fine_agrees": "for comparison: the fine patch that agrees most in each outlined middle patch",
}
ORDER_HEADS = ("order of the cells", "deletion (lower is better)", "insertion (higher is better)")
BATCHES = (1, 32)
FORMS = ("fp32", "int8")
NONE = "–"  # an empty cell


def drop_empty(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows without the columns whose cells are all empty."""
    columns = [i for i in range(len(heads)) if any(row[i] != NONE for row in rows)]
    return [heads[i] for i in columns], [[row[i] for i in columns] for row in rows]


def with_n(value: Spread) -> str:
    """88.40 ± 0.26 (n = 3)"""
    return f"{value} (n = {value.n})"


_EXPLANATION: dict[str, Any] = {
    "model": str, "dataset": str, "split": str, "n": int, "images": str, "weights_sha256": str, "device": str,
}  # fmt: skip
_WAY = {"auc": [NUMBER], "less_gradient": [NUMBER]}
_METHOD = _WAY | {"less_random": [NUMBER], "better_than_random": NUMBER}
_SETTING = {"cell": int, "fill": str, "per_step": int}
_MEASURED = {
    "random_seeds": [int], "random_draws": int,
    "named": {"*": {"named": [NUMBER], "random": [NUMBER], "less_random": [NUMBER]}},
    "settings": [_SETTING | {"methods": {name: {"deletion": _METHOD, "insertion": _METHOD} for name in METHODS}}],
}  # fmt: skip
_CANDIDATES = {"settings": [_SETTING | {"candidates": {"*": {"title": str, "deletion": _WAY, "insertion": _WAY}}}]}
_PRECISIONS = {"fp32": NUMBER, "int8": NUMBER}
_INT8 = {
    "weights": {
        "*": {"bytes": _PRECISIONS, "accuracy": _PRECISIONS, "ms_per_image": {"*": {"ratio": [NUMBER]}}, "same": int}
    }
}
_ENSEMBLE = {"data": str, "images": int, "accuracy": NUMBER, "members": [{"accuracy": NUMBER}]}


def read_explanations(results: Path) -> list[dict[str, Any]]:
    """In the order of their file names; `candidates` marks those that compare ways of making the map."""
    entries = []
    for path in sorted((results / "explanation").glob("*.json")):
        compares = path.name.startswith("candidates-")
        form = _EXPLANATION | (_CANDIDATES if compares else _MEASURED)
        entries.append(read_form(path, form, "a measurement of explanations") | {"candidates": compares})
    return entries


def read_int8(results: Path) -> dict[str, Any]:
    return dict(read_form(results / "export" / "int8.json", _INT8, "a measurement of int8"))


def read_ensembles(results: Path) -> list[dict[str, Any]]:
    """Written by `mspcaps eval A B C --json`; a file is called MODEL-DATA.json."""
    return [
        read_form(path, _ENSEMBLE, "an evaluation of an ensemble") | {"model": path.stem.partition("-")[0]}
        for path in sorted((results / "ensembles").glob("*.json"))
    ]


def named_table(groups: Mapping[str, Any]) -> str:
    """How far the score drops, and the paired difference from random patches."""
    rows = []
    for group, title in PATCHES.items():
        if group in groups:
            own, random, fall = (groups[group][key] for key in ("named", "random", "less_random"))
            word = "more" if fall[0] > 2 * fall[1] else "less" if fall[0] < -2 * fall[1] else "no clear difference"
            rows.append((title, f"{own[0]:.3f}", f"{random[0]:.3f}", figures(fall), word))
    return markdown_table(("patches", "score drops by", "random patches", "difference", "verdict"), rows, (1, 2, 3))


def candidates_table(candidates: Mapping[str, Any]) -> str:
    rows = [
        (
            row["title"].replace("|", "&#124;"),
            *(f"{row[w]['auc'][0]:.3f} ({figures(row[w]['less_gradient'])})" for w in ("deletion", "insertion")),
        )
        for row in candidates.values()
    ]
    return markdown_table(ORDER_HEADS, rows, (1, 2))


def methods_table(methods: Mapping[str, Any]) -> str:
    rows = []
    for name, title in METHODS.items():
        cells = []
        for curve in (methods[name][way] for way in ("deletion", "insertion")):
            beats = "" if name == "random" else f" ({curve['better_than_random']:.0f} %)"
            cells.append(f"{curve['auc'][0]:.3f} ± {curve['auc'][1]:.3f}{beats}")
        rows.append((title, *cells))
    return markdown_table(ORDER_HEADS, rows, (1, 2))


def judge(way: str, difference_and_error: Sequence[float]) -> str:
    """No verdict within two standard errors."""
    difference, error = difference_and_error
    gain = -difference if way == "deletion" else difference
    return "better than" if gain > 2 * error else "worse than" if gain < -2 * error else "not clearly different from"


def figures(difference_and_error: Sequence[float]) -> str:
    """−0.012 ± 0.003"""
    return "{:+.3f} ± {:.3f}".format(*difference_and_error).replace("-", "−")


def int8_table(result: Mapping[str, Any]) -> str:
    """Ratios of times, not milliseconds, which a busy machine changes more."""
    heads = ("weights", "file, fp32", "int8", "accuracy, fp32", "int8", *(f"time at batch {b}" for b in BATCHES))
    rows = []
    for name, entry in result["weights"].items():
        times = [entry["ms_per_image"][str(batch)]["ratio"] for batch in BATCHES]
        rows.append((
            f"`{name}`", *(format_bytes(entry["bytes"][form]) for form in FORMS),
            *(f"{entry['accuracy'][form]:.2f} %" for form in FORMS),
            *(f"{median:.2f} ({low:.2f} to {high:.2f})" for low, median, high in times),
        ))  # fmt: skip
    return markdown_table(heads, rows, range(1, len(heads)))
