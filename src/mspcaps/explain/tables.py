"""The measured faithfulness as Markdown: figures come from results/explain/*.json and from nowhere else."""

import json
import re
from pathlib import Path
from typing import Any

from mspcaps.errors import MspcapsError
from mspcaps.explain.faithfulness import METHODS

BEGIN, END = "<!-- faithfulness -->", "<!-- /faithfulness -->"
GENERATED = "<!-- Written by docs/make_explain.py from results/explain/. Do not edit: a test compares the two. -->"
EMPTY = "Not measured yet."


def block(results: Path) -> str:
    """All measurements of a folder, between the two marks."""
    files = sorted(results.glob("*.json")) if results.is_dir() else []
    parts = [BEGIN, GENERATED, ""]
    for path in files:
        parts += [*measurement(read(path)), ""]
    if not files:
        parts += [EMPTY, ""]
    return "\n".join([*parts, END])


def with_block(text: str, results: Path, where: str) -> str:
    """The text with what stands between its marks written anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise MspcapsError(f"{where} must hold {BEGIN} and after it {END}, once")
    new = block(results)
    return re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: new, text, flags=re.DOTALL)


def read(path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if not entry["settings"] or set(METHODS) - set(entry["settings"][0]["methods"]):
            raise KeyError("methods")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MspcapsError(f"{path} is not a measurement of explanations: {error}") from error
    return entry


def measurement(entry: dict[str, Any]) -> list[str]:
    """One heading, and for every setting a table and the verdict."""
    seeds = ", ".join(str(seed) for seed in entry["random_seeds"])
    lines = [
        f"### {entry['model']} on {entry['dataset']}, n = {entry['n']}",
        "",
        f"Mean area under the curve ± standard error over {entry['n']} {entry['split']} images ({entry['images']}); "
        f"random orders are the mean of seeds {seeds}. In brackets the share of images on which the method beats the "
        f"random order. Commit {(entry['commit'] or 'unknown')[:7]}, weights {entry['weights_sha256'][:8]}, "
        f"{entry['device']}.",
    ]
    for setting in entry["settings"]:
        fill = "the mean colour" if setting["fill"] == "mean" else "a blurred copy"
        lines += ["", f"**Cells of {setting['cell']} × {setting['cell']} pixels, covered with {fill}**", ""]
        lines += table(setting["methods"])
        lines += ["", verdict(setting["methods"])]
    return lines


def table(methods: dict[str, Any]) -> list[str]:
    rows = ["| order of the cells | deletion, less is better | insertion, more is better |", "| --- | --: | --: |"]
    for name, title in METHODS.items():
        cells = []
        for way in ("deletion", "insertion"):
            found = methods[name][way]
            beats = "" if name == "random" else f" ({found['better_than_random']:.0f} %)"
            cells.append(f"{found['auc'][0]:.3f} ± {found['auc'][1]:.3f}{beats}")
        rows.append(f"| {title} | {cells[0]} | {cells[1]} |")
    return rows


def verdict(methods: dict[str, Any]) -> str:
    """Part-whole against random order and against gradients, in words; no verdict within two standard errors."""
    said = []
    for way, sign in (("deletion", -1), ("insertion", 1)):
        against = {}
        for other in ("random", "gradient"):
            difference, error = methods["part_whole"][way][f"less_{other}"]  # paired, image by image
            figures = f"{difference:+.3f} ± {error:.3f}".replace("-", "−")
            against[other] = judge(sign * difference, 2 * error), figures
        said.append(
            f"{way.capitalize()}: the part-whole map is {against['random'][0]} random order ({against['random'][1]}) "
            f"and {against['gradient'][0]} the gradient ({against['gradient'][1]})."
        )
    return " ".join(said)


def judge(gain: float, doubt: float) -> str:
    return "better than" if gain > doubt else "worse than" if gain < -doubt else "not told apart from"
