"""What int8 costs and gains: shipped weights as ONNX files in fp32 and in int8, measured side by side in one run.

    python -m reproduction.studies.int8

measures the shipped T weights with one thread, so that other programs disturb less, and writes
results/export/int8.json; `make regenerate` then writes the figures into docs/export.md. It takes up to ten minutes and
needs all four data sets (`mspcaps data get`).
"""

import importlib.metadata
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mspcaps.bench.infer import OnnxForward
from mspcaps.bench.result import environment
from mspcaps.bench.timing import Effort, quantile, repeat, significant, time_interleaved
from mspcaps.data import ImageSet
from mspcaps.evaluation import evaluate, load_for
from mspcaps.export.model import Exported, export_model, load_onnx
from mspcaps.files import write_json
from mspcaps.models import list_pretrained
from reproduction.study_tables import BATCHES, FORMS

RESULT = Path("results/export/int8.json")
CPU = torch.device("cpu")
EFFORT = Effort(repeats=41, seconds=0.2)  # many short blocks, so that other programs disturb only a few
CONVENTIONS = {
    "accuracy": "percent of the whole test set, through onnxruntime",
    "same": "test images that both answer alike",
    "ms_per_image": "median over blocks of calls that alternate between fp32 and int8, first test images",
    "ratio": "time of an int8 block over that of the fp32 block before it: quartiles; below 1 int8 is faster",
}


def measure(names: Sequence[str], effort: Effort = EFFORT) -> dict[str, Any]:
    """`names` are shipped weights or weights files; the data is what they were trained on."""
    machine = environment(CPU)  # before our own work makes it busy
    machine["software"]["onnxruntime"] = importlib.metadata.version("onnxruntime")
    machine["vnni"] = has_vnni()
    return {
        "what": "int8", "environment": machine, "repeats": effort.repeats, "conventions": CONVENTIONS,
        "weights": {str(name): compare(name, effort) for name in names},
    }  # fmt: skip


def compare(name: str | Path, effort: Effort) -> dict[str, Any]:
    """One model in both forms."""
    with tempfile.TemporaryDirectory() as place:
        files = [export_model(name, Path(place) / f"{form}.onnx", int8=form == "int8") for form in FORMS]
        models = [load_onnx(file.path) for file in files]
        data = load_for(models[0])
        evaluations = [evaluate(model, data) for model in models]
        times = {str(batch): time_per_image(files, data, batch, effort) for batch in BATCHES}
    first, second = (evaluation.predictions for evaluation in evaluations)
    return {
        "model": files[0].metadata.model,
        "dataset": data.name,
        "weights_sha256": files[0].metadata.sha256,
        "test_images": len(data),
        "bytes": dict(zip(FORMS, (file.bytes for file in files), strict=True)),
        "accuracy": dict(zip(FORMS, (round(each.accuracy, 4) for each in evaluations), strict=True)),
        "same": int((first == second).sum()),
        "ms_per_image": times,
    }


def time_per_image(files: Sequence[Exported], data: ImageSet, batch: int, effort: Effort) -> dict[str, Any]:
    """Milliseconds of each form, and the quartiles of their ratio."""
    forwards = {form: OnnxForward(file.path) for form, file in zip(FORMS, files, strict=True)}
    for forward in forwards.values():
        forward.prepare(data.images[:batch].float() / 255)
    timings = time_interleaved({form: repeat(forward) for form, forward in forwards.items()}, CPU, effort)
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_json(RESULT, measure(list_pretrained("mspcaps_t.*")))
