"""Speed, as `mspcaps bench` measured it, for docs/speed.md."""

import json
from pathlib import Path
from typing import Any

from mspcaps.benchmarks import tables
from mspcaps.errors import MspcapsError
from mspcaps.report.grid import GENERATED, grid
from mspcaps.training.ledger import read_entry

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
            if missing := [key for key in ("what", "model", "quick", "environment") if key not in found[-1]]:
                raise ValueError(f"it has no {missing[0]!r}")
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


SIDE_BY_SIDE = (
    "A sweep gives every run a thread, a stream and a CUDA graph of its own, and four runs of MSPCaps-T share the GPU: "
    "the table of its training above says what that gains. We aimed at 1.8 times and did not get there. Tried were "
    "processes under MPS, graphs of other lengths, no second stream for the weight gradients, and our own kernels for "
    "the gradients of narrow convolutions and for the sums of BatchNorm with more loads under way: the last "
    "two are faster by themselves, but none of these helps when four runs share the GPU."
)


AGREEMENT = (
    "Speed is worth nothing if the result differs. Each run below was made twice from the same seed, to its last "
    "epoch: captured in a CUDA graph with our kernels, as every run of the ledger is, and step by step; in fp32 all "
    "layers are PyTorch's own. Accuracy is the percentage of held-out training images after the last epoch. A GPU adds "
    "in no fixed order, so two runs of one form differ as well."
)


def agreement(results: Path) -> list[str]:
    """What the runs of results/forms reached and what the same runs of the ledger did."""
    rows = []
    for path in sorted((results / "forms").glob("*.json")):
        other = read_entry(path)
        name = f"{other['recipe']['name']}-seed{other['seed']}.json"
        ours = read_entry(results / other["dataset"] / other["model"] / name)
        pair = (ours, other)
        run = f"`{other['model']}`, {other['dataset']}, {other['epochs']} epochs, seed {other['seed']}"
        reached = [f"{entry['form']}, {entry['precision']}: {entry['accuracy']['last']:.2f}" for entry in pair]
        difference = ours["accuracy"]["last"] - other["accuracy"]["last"]
        rows.append((run, *reached, f"{difference:+.2f}".replace("-", "−")))
    if not rows:
        return []
    heads = ("run", "as the ledger has it", "step by step", "difference")
    return ["", "## The forms agree", "", AGREEMENT, "", *grid(heads, rows, right=(1, 2, 3))]


def render_speed(results: Path) -> str:
    """docs/speed.md."""
    parts = [GENERATED, "", "# Speed", "", INTRODUCTION]
    measured = read_benchmarks(results)
    for result in measured:
        what = "Training" if result["what"] == "train" else "Inference"
        parts += ["", f"## {what}: `{result['model']}` on {result['environment']['device']}"]
        if result["what"] == "train":
            shown, notes = tables.training_tables(result), tables.training_notes(result)
        else:
            shown, notes = tables.inference_tables(result), tables.inference_notes(result)
        for heads, rows in shown:
            parts += ["", *grid(heads, rows, right=range(1, len(heads)))]
        parts += ["", *(f"- {note[0].upper()}{note[1:]}" for note in map(escaped, notes))]
    if any("packed" in result for result in measured):
        parts += ["", "## Several runs on one GPU", "", SIDE_BY_SIDE]
    parts += agreement(results)
    return "\n".join(parts) + "\n"


def escaped(note: str) -> str:
    """An asterisk at the front would begin a list."""
    return note.replace("*", "\\*")
