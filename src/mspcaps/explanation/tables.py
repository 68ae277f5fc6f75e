"""The measured faithfulness as Markdown: figures come from results/explain/*.json and from nowhere else."""

import json
from pathlib import Path
from typing import Any

from mspcaps.errors import MspcapsError
from mspcaps.explanation.faithfulness import METHODS
from mspcaps.explanation.named import NAMES
from mspcaps.files import split_at_markers
from mspcaps.pages.grid import grid

BEGIN, END = "<!-- faithfulness -->", "<!-- /faithfulness -->"
GENERATED = "<!-- Written by docs/make_explain.py from results/explain/. Do not edit: a test compares the two. -->"
EMPTY = "Not measured yet."
HEADS = ("order of the cells", "deletion (lower is better)", "insertion (higher is better)")
CANDIDATES = "candidates-"  # how the files of docs/compare_heat_maps.py begin


def block(results: Path) -> str:
    """All measurements of a folder, between the two marks."""
    files = sorted(results.glob("*.json")) if results.is_dir() else []
    parts = [BEGIN, GENERATED, ""]
    for path in files:
        parts += [*(candidates if path.name.startswith(CANDIDATES) else measurement)(read(path)), ""]
    if not files:
        parts += [EMPTY, ""]
    return "\n".join([*parts, END])


def with_block(text: str, results: Path, where: str) -> str:
    """The text with what stands between its marks written anew."""
    before, after = split_at_markers(text, BEGIN, END, where)
    return before + block(results) + after


def read(path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        rows = entry["settings"][0]["candidates" if path.name.startswith(CANDIDATES) else "methods"]
        if not path.name.startswith(CANDIDATES) and (set(METHODS) - set(rows) or not entry["named"]):
            raise KeyError("methods")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MspcapsError(f"{path} is not a measurement of explanations: {error}") from error
    return entry


def measurement(entry: dict[str, Any]) -> list[str]:
    """One heading, the named patches, and for every setting a table and the verdict."""
    seeds = ", ".join(str(seed) for seed in entry["random_seeds"])
    lines = [
        f"### {entry['model']} on {entry['dataset']}, n = {entry['n']}",
        "",
        f"Mean area under the curve ± standard error over {entry['n']} {entry['split']} images ({entry['images']}); "
        f"random order is the mean of seeds {seeds}. In brackets: share of images on which the method beats random "
        f"order. Commit {(entry['commit'] or 'unknown')[:7]}, weights {entry['weights_sha256'][:8]}, "
        f"{entry['device']}.",
        "",
        f"**Covering only the named patches, with the mean colour.** Random patches: equal in number and size, fine "
        f"ones inside the same middle patches, mean of {entry['random_draws']} draws per image.",
        "",
        *named(entry["named"]),
    ]
    for setting in entry["settings"]:
        lines += ["", heading(setting), "", *table(setting["methods"])]
        lines += ["", verdict(setting["methods"])]
    return lines


def heading(setting: dict[str, Any]) -> str:
    fill = "the mean colour" if setting["fill"] == "mean" else "a blurred copy"
    return f"**Cells of {setting['cell']} × {setting['cell']} pixels, covered with {fill}**"


def named(groups: dict[str, Any]) -> list[str]:
    """By how much the score drops, and the paired difference to random patches in words."""
    rows = []
    for group, title in NAMES.items():
        if group in groups:
            own, random, (difference, error) = (groups[group][key] for key in ("named", "random", "less_random"))
            word = "more" if difference > 2 * error else "less" if difference < -2 * error else "no clear difference"
            rows.append((title, f"{own[0]:.3f}", f"{random[0]:.3f}", figures(difference, error), word))
    return grid(("patches", "score drops by", "random patches", "difference", "verdict"), rows, right=(1, 2, 3))


def candidates(entry: dict[str, Any]) -> list[str]:
    """Ways to make the map, compared where it was chosen."""
    lines = [
        f"### How the map was chosen: {entry['model']} on {entry['n']} training images of {entry['dataset']} "
        f"({entry['images']})",
        "",
        "Mean area under the curve; in brackets: paired difference to the gradient ± standard error. Weights "
        f"{entry['weights_sha256'][:8]}, {entry['device']}.",
    ]
    for setting in entry["settings"]:
        rows = []
        for row in setting["candidates"].values():
            cells = [
                f"{row[way]['auc'][0]:.3f} ({figures(*row[way]['less_gradient'])})" for way in ("deletion", "insertion")
            ]
            rows.append((row["title"].replace("|", "&#124;"), *cells))
        lines += ["", heading(setting), "", *grid(HEADS, rows, right=(1, 2))]
    return lines


def table(methods: dict[str, Any]) -> list[str]:
    rows = []
    for name, title in METHODS.items():
        cells = []
        for way in ("deletion", "insertion"):
            found = methods[name][way]
            beats = "" if name == "random" else f" ({found['better_than_random']:.0f} %)"
            cells.append(f"{found['auc'][0]:.3f} ± {found['auc'][1]:.3f}{beats}")
        rows.append((title, *cells))
    return grid(HEADS, rows, right=(1, 2))


def verdict(methods: dict[str, Any]) -> str:
    """Part-whole against random order and against gradients, in words; no verdict within two standard errors."""
    said = []
    for way, sign in (("deletion", -1), ("insertion", 1)):
        against = {}
        for other in ("random", "gradient"):
            difference, error = methods["part_whole"][way][f"less_{other}"]  # paired, image by image
            against[other] = judge(sign * difference, 2 * error), figures(difference, error)
        said.append(
            f"{way.capitalize()}: the part-whole map is {against['random'][0]} random order ({against['random'][1]}) "
            f"and {against['gradient'][0]} the gradient ({against['gradient'][1]})."
        )
    return " ".join(said)


def figures(difference: float, error: float) -> str:
    return f"{difference:+.3f} ± {error:.3f}".replace("-", "−")


def judge(gain: float, doubt: float) -> str:
    return "better than" if gain > doubt else "worse than" if gain < -doubt else "not clearly different from"
