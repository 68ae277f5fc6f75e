"""Speed, as `mspcaps bench` measured it, for docs/speed.md."""

import json
from pathlib import Path
from typing import Any

from mspcaps.benchmarks import tables
from mspcaps.errors import MspcapsError
from mspcaps.pages.grid import grid
from mspcaps.report.runs import Run
from mspcaps.report.tables import GENERATED, Report, signed
from mspcaps.training.recipe import measured_on

INTRODUCTION = (
    "What `mspcaps bench` measured on the machines that we had: our engine against an honestly written eager reference "
    "(plain modules, fp32, a DataLoader with workers) and against a ResNet of the same size, all in one run, on "
    "synthetic images like those of CIFAR-10. On a large GPU the eager reference waits for Python and for kernels to "
    "be launched, not for arithmetic, so that a small and a large model take the same time in it; its convolutions are "
    "in TF32, as PyTorch has them by default. Run it on yours."
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
    "A sweep gives every run a thread, a stream and a CUDA graph of its own, and four runs of MSPCaps-T share the GPU: "
    "the table of its training above says what that gains. We aimed at 1.8 times and did not get there, in bare steps "
    "or in whole sweeps. Tried were processes under MPS, graphs of other lengths, no second stream for the weight "
    "gradients, and our own kernels for the gradients of narrow convolutions and for the sums of BatchNorm with more "
    "loads under way: the last two are faster by themselves, but none of these helps when four runs share the GPU."
)


AGREEMENT = (
    "Speed is worth nothing if the result differs. Each run below was made twice from the same seed, to its last "
    "epoch, and its accuracy is that of the last epoch. The ledger has it captured in a CUDA graph with our kernels; "
    "made again in another form it went step by step, and in fp32 all layers were PyTorch's own. A GPU adds in no "
    "fixed order, so two runs of the same form differ as well, and by as much: see the runs that were made again as "
    "they were. What the ledger has is always the run that ended first."
)


AGAIN_ANCHOR = "the-same-run-made-again"  # where it is on the page


def agreement(report: Report) -> list[str]:
    """What runs reached that were made again, and what the same runs of the ledger did."""
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
    heads = ("run", "images", "as the ledger has it", "made again", "difference")
    return ["", "## The same run made again", "", AGREEMENT, "", *grid(heads, rows, right=(2, 3, 4))]


def is_again(run: Run, other: Run) -> bool:
    return all(getattr(run, key) == getattr(other, key) for key in ("model", "dataset", "recipe", "seed"))


def render_speed(results: Path, report: Report) -> str:
    """docs/speed.md."""
    parts = [GENERATED, "", "# Speed", "", INTRODUCTION]
    measured = read_benchmarks(results)
    for result in measured:
        what = "Training" if result["what"] == "train" else "Inference"
        parts += ["", f"## {what}: `{result['model']}` on {result['environment']['device']}"]
        found, notes = tables.shown(result)
        for heads, rows in found:
            parts += ["", *grid(heads, rows, right=range(1, len(heads)))]
        parts += ["", *(f"- {note[0].upper()}{note[1:]}" for note in map(escaped, notes))]
    if any("packed" in result for result in measured):
        parts += ["", "## Several runs on one GPU", "", SIDE_BY_SIDE]
    parts += agreement(report)
    return "\n".join(parts) + "\n"


def escaped(note: str) -> str:
    """An asterisk at the front would begin a list."""
    return note.replace("*", "\\*")
