"""What int8 costs and gains: shipped weights as ONNX files in fp32 and in int8, measured side by side in one run.

docs/measure_int8.py measures, docs/make_export.py writes the table; its figures come from results/export/ only.
"""

import importlib.metadata
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mspcaps.bench.infer import OnnxForward
from mspcaps.bench.result import environment
from mspcaps.bench.tables import busy_note, versions
from mspcaps.bench.timing import Effort, quantile, significant, time_interleaved
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import evaluate, load_for
from mspcaps.export.model import Exported, export_model, load_onnx
from mspcaps.files import format_bytes, split_at_markers
from mspcaps.pages.grid import grid

FILE = "int8.json"
BATCHES = (1, 32)
FORMS = ("fp32", "int8")
CPU = torch.device("cpu")
EFFORT = Effort(repeats=41, seconds=0.2)  # many short blocks: what else runs here hits a few of them
CONVENTIONS = {
    "accuracy": "percent of the whole test set, through onnxruntime",
    "same": "test images that both answer alike",
    "ms_per_image": "median over blocks of calls that alternate between fp32 and int8, first test images",
    "ratio": "time of an int8 block over that of the fp32 block before it: quartiles; below 1 int8 is faster",
}
BEGIN, END = "<!-- int8 -->\n", "<!-- /int8 -->"
GENERATED = "<!-- Written by docs/make_export.py from results/export/. Do not edit: a test compares the two. -->"
HEADS = ("weights", "file, fp32", "int8", "accuracy, fp32", "int8", *(f"time at batch {batch}" for batch in BATCHES))


def measure(names: Sequence[str], effort: Effort = EFFORT) -> dict[str, Any]:
    """`names` are those of shipped weights, or weights files; their data is what they were trained on."""
    around = environment(CPU)  # before anything of ours keeps the machine busy
    around["software"]["onnxruntime"] = importlib.metadata.version("onnxruntime")
    around["vnni"] = has_vnni()
    return {
        "what": "int8", "environment": around, "repeats": effort.repeats, "conventions": CONVENTIONS,
        "weights": {str(name): compare(name, effort) for name in names},
    }  # fmt: skip


def compare(name: str | Path, effort: Effort) -> dict[str, Any]:
    """One model in both forms."""
    with tempfile.TemporaryDirectory() as place:
        made = [export_model(name, Path(place) / f"{form}.onnx", int8=form == "int8") for form in FORMS]
        models = [load_onnx(file.path) for file in made]
        data = load_for(models[0])
        found = [evaluate(model, data) for model in models]
        times = {str(batch): time_per_image(made, data, batch, effort) for batch in BATCHES}
    answers = [each.scores.argmax(1) for each in found]
    return {
        "model": made[0].metadata.model,
        "dataset": data.name,
        "weights_sha256": made[0].metadata.sha256,
        "test_images": len(data),
        "bytes": dict(zip(FORMS, (file.bytes for file in made), strict=True)),
        "accuracy": dict(zip(FORMS, (round(each.accuracy, 4) for each in found), strict=True)),
        "same": int((answers[0] == answers[1]).sum()),
        "ms_per_image": times,
    }


def time_per_image(made: Sequence[Exported], data: ImageSet, batch: int, effort: Effort) -> dict[str, Any]:
    """Milliseconds of each form, and what share of the first the second takes."""
    works = {form: OnnxForward(file.path) for form, file in zip(FORMS, made, strict=True)}
    for forward in works.values():
        forward.prepare(data.images[:batch].float() / 255)
    timings = time_interleaved(works, CPU, effort)
    pairs = zip(*(timings[form].samples for form in FORMS), strict=True)
    ratios = sorted(small / whole for whole, small in pairs)
    return {
        **{form: significant(timings[form].median / batch) for form in FORMS},
        "ratio": [round(quantile(ratios, share), 3) for share in (0.25, 0.5, 0.75)],
    }


def has_vnni() -> bool | None:
    """Whether the processor has instructions for int8; None where the system does not say."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None


def with_block(text: str, results: Path, where: str) -> str:
    """The text with the table between its marks written anew."""
    before, after = split_at_markers(text, BEGIN, END, where)
    path = results / FILE
    try:
        lines = table(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MspcapsError(f"{path} was not written by docs/measure_int8.py: {error!r}") from error
    return before + BEGIN + lines + END + after


def table(result: dict[str, Any]) -> str:
    rows = [row(*item) for item in result["weights"].items()]
    return "\n".join([GENERATED, "", *grid(HEADS, rows, right=range(1, len(HEADS))), "", notes(result)]) + "\n\n"


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Milliseconds stay in the store: a busy machine changes them more than their ratio."""
    cells = [f"`{name}`", *(format_bytes(found["bytes"][form]) for form in FORMS)]
    cells += [f"{found['accuracy'][form]:.2f} %" for form in FORMS]
    for batch in BATCHES:
        low, median, high = found["ms_per_image"][str(batch)]["ratio"]
        cells.append(f"{median:.2f} ({low:.2f} to {high:.2f})")
    return cells


def notes(result: dict[str, Any]) -> str:
    around = result["environment"]
    differ = ", ".join(
        f"{100 - 100 * found['same'] / found['test_images']:.2f} % of {found['test_images']:,} on {found['dataset']}"
        for found in result["weights"].values()
    )
    vnni = {True: ", with VNNI", False: ", without VNNI", None: ""}[around["vnni"]]
    said = [
        f"Accuracy is of the whole test set; int8 and fp32 predictions differ for {differ}.",
        f"Times are those of int8 divided by those of fp32, per call with that many images: the median of "
        f"{result['repeats']} pairs measured alternately, with quartiles in brackets.",
        f"{around['device']}{vnni}, {versions(around['software'])}, {around['date']}.",
        *busy_note(around),
    ]
    return " ".join(said)
