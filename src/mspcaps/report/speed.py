"""Speed, as `mspcaps bench` measured it, for docs/speed.md."""

import json
from pathlib import Path
from typing import Any

from mspcaps.benchmarks import tables
from mspcaps.errors import MspcapsError
from mspcaps.report.grid import GENERATED, grid

INTRODUCTION = (
    "What `mspcaps bench` measured on the machines that we had: our engine against an honestly written eager reference "
    "(plain modules, fp32, a DataLoader with workers) and against a ResNet of the same size, all in one run, on "
    "synthetic images like those of CIFAR-10. Run it on yours."
)


def read_benchmarks(results: Path) -> list[dict[str, Any]]:
    """All measurements, training before inference, small models first, GPUs before CPUs."""
    found = []
    for path in sorted((results / "bench").glob("*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise MspcapsError(f"{path} is not a measurement of `mspcaps bench`: {error}") from error
    order = ["train", "infer"]
    return sorted(
        (result for result in found if not result["quick"]),
        key=lambda r: (
            order.index(r["what"]),
            "CPU" in r["environment"]["device"],
            r["model"] != "mspcaps_t",
            r["model"],
        ),
    )


def render_speed(results: Path) -> str:
    """docs/speed.md."""
    parts = [GENERATED, "", "# Speed", "", INTRODUCTION]
    for result in read_benchmarks(results):
        what = "Training" if result["what"] == "train" else "Inference"
        parts += ["", f"## {what}: `{result['model']}` on {result['environment']['device']}"]
        if result["what"] == "train":
            shown, notes = tables.training_tables(result), tables.training_notes(result)
        else:
            shown, notes = tables.inference_tables(result), tables.inference_notes(result)
        for heads, rows in shown:
            parts += ["", *grid(heads, rows, right=range(1, len(heads)))]
        parts += ["", *(f"- {note[0].upper()}{note[1:]}" for note in map(escaped, notes))]
    return "\n".join(parts) + "\n"


def escaped(note: str) -> str:
    """An asterisk at the front would begin a list."""
    return note.replace("*", "\\*")
