"""Speed, as `mspcaps bench` measured it, for docs/speed.md."""

import json
from pathlib import Path
from typing import Any

from mspcaps.bench import tables
from mspcaps.errors import MspcapsError
from mspcaps.pages.grid import grid
from mspcaps.report.runs import Run
from mspcaps.report.tables import GENERATED, Report, signed
from mspcaps.training.recipe import measured_on

INTRODUCTION = (
    "Measured with `mspcaps bench` on the machines that we had; run it on yours. Each benchmark compares MSPCaps with "
    "a ResNet of similar size and, for training, our engine with a carefully written eager reference (plain modules, "
    "fp32, a DataLoader with workers), all in one run, on synthetic images like CIFAR-10's. On a GPU the convolutions "
    "of the reference use TF32, PyTorch's default. On a large GPU the reference is limited by Python and kernel "
    "launches, not by arithmetic, so a small and a large model take about the same time."
)


ORDER = ("train", "infer")


def read_benchmarks(results: Path) -> list[dict[str, Any]]:
    """All measurements, training before inference, small models first, GPUs before CPUs."""
    found = []
    for path in sorted((results / "bench").glob("*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
            if missing := [key for key in ("what", "model", "quick", "environment") if key not in found[-1]]:
                raise ValueError(f"it has no {missing[0]!r}")
            if found[-1]["what"] not in ORDER:
                raise ValueError(f"it measures {found[-1]['what']!r}, not {' or '.join(ORDER)}")
        except (OSError, ValueError) as error:
            raise MspcapsError(f"{path} is not a measurement of `mspcaps bench`: {error}") from error
    return sorted(
        (result for result in found if not result["quick"]),
        key=lambda r: (
            ORDER.index(r["what"]),
            "CPU" in r["environment"]["device"],
            r["model"] != "mspcaps_t",
            r["model"],
        ),
    )


SIDE_BY_SIDE = (
    "In a sweep every run has a thread, a stream and a CUDA graph of its own, and four runs of MSPCaps-T share the "
    "GPU; its training tables above show the gain. We aimed at 1.8 times the throughput and did not reach it, "
    "neither in bare steps nor in whole sweeps. We tried processes under MPS, graphs of other lengths, no second "
    "stream for the weight gradients, and our own kernels for the gradients of narrow convolutions and for BatchNorm "
    "sums with more loads in flight. The last two are faster by themselves, but nothing helped when four runs share "
    "the GPU."
)


AGREEMENT = (
    "Speed is worth nothing if the results differ. Each run below was trained twice from the same seed, and the "
    "accuracy is that of the last epoch. The run in the ledger was captured in a CUDA graph with our kernels. An eager "
    "repeat ran step by step; in fp32 all its layers were PyTorch's own. A GPU adds in no fixed order, so two captured "
    "runs differ as well, and by as much: see the captured repeats. The ledger always keeps the run that ended first."
)


AGAIN_ANCHOR = "the-same-run-made-again"  # where it is on the page


def agreement(report: Report) -> list[str]:
    """What repeated runs reached, and what the same runs of the ledger did."""
    rows = []
    for other in report.again:
        ours = next((run for run in report.runs if is_again(other, run)), None)
        if ours is None:
            raise MspcapsError(f"{other.model}, {other.name}, seed {other.seed} is in again/, but not in the ledger")
        run = f"`{other.model}`, {other.dataset}, {other.recipe['epochs']} epochs, seed {other.seed}"
        reached = [f"{made.form}, {made.precision}: {made.last:.2f}" for made in (ours, other)]
        rows.append((run, measured_on(other.recipe["held_out"]), *reached, signed(ours.last - other.last, 2)))
    if not rows:
        return []
    heads = ("run", "images", "in the ledger", "repeat", "difference")
    return [
        "",
        f'<a id="{AGAIN_ANCHOR}"></a>',
        "",
        "## Repeated runs",
        "",
        AGREEMENT,
        "",
        *grid(heads, rows, right=(2, 3, 4)),
    ]


def is_again(run: Run, other: Run) -> bool:
    return all(getattr(run, key) == getattr(other, key) for key in ("model", "dataset", "recipe", "seed"))


def render_speed(results: Path, report: Report) -> str:
    """docs/speed.md."""
    parts = [GENERATED, "", "# Speed", "", INTRODUCTION]
    measured = read_benchmarks(results)
    for result in measured:
        what = "Training" if result["what"] == "train" else "Inference"
        parts += ["", f"## {what}: `{result['model']}` on {result['environment']['device']}"]
        found, notes = tables.result_tables(result)
        for heads, rows in found:
            parts += ["", *grid(heads, rows, right=range(1, len(heads)))]
        parts += ["", *(f"- {note}" for note in map(escaped, notes))]
    if any("packed" in result for result in measured):
        parts += ["", "## Several runs on one GPU", "", SIDE_BY_SIDE]
    parts += agreement(report)
    return "\n".join(parts) + "\n"


def escaped(note: str) -> str:
    """An asterisk at the front would begin a list."""
    return note.replace("*", "\\*")
