"""`export_model`: a trained model as one file, written only after its scores have matched PyTorch's."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.load import trained_on
from mspcaps.export.graphs import fp32_eval_copy, onnx_runner, pt2_runner, to_onnx, to_pt2, trace
from mspcaps.export.quantize import Agreement, load_calibration, quantize
from mspcaps.export.runner import Metadata, OnnxModel, require
from mspcaps.files import ProgressFn, no_progress, sha256_of, write_atomically
from mspcaps.models import Model, as_model, class_names, config_of, create_model, unwrapped, weights_path

BATCHES = (1, 3, 8)
TOLERANCE = 1e-5  # for scores up to 1, such as capsule lengths; relative to the largest score if that is above 1
SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked."""

    path: Path
    bytes: int
    metadata: Metadata
    differences: dict[int, float]  # batch size -> largest difference from PyTorch's scores, in fp32
    agreement: Agreement | None = None  # of int8


def export_model(
    model: nn.Module | str | Path,
    path: str | Path,
    int8: bool = False,
    calibrate: str | Path | None = None,
    progress: ProgressFn = no_progress,
) -> Exported:
    """Export a model to `path`: .onnx for onnxruntime, .pt2 for torch.export.load, both for any batch size.

    Before anything is written, the scores are compared with the model's in batches of 1, 3 and 8. `int8` (ONNX only)
    quantises the convolutions, with ranges from training images of `calibrate`, a data set or a folder; default: the
    data the model was trained on. `model` may be a module, a weights file or the name of shipped weights; for the
    latter two the metadata includes the sha256 of the file.
    """
    path = check_request(Path(path).expanduser(), int8, calibrate)
    module = unwrapped(as_model(model))
    metadata = describe(module)
    if not isinstance(model, nn.Module):  # a module may have been trained further since its file was read
        metadata = replace(metadata, sha256=sha256_of(weights_path(model)))
    images = load_calibration(module, calibrate, progress) if int8 else None
    program, agreement = trace(module), None
    to_file, runner = (to_onnx, onnx_runner) if path.suffix == ".onnx" else (to_pt2, pt2_runner)
    content = to_file(program, metadata)
    differences = check_parity(module, metadata, runner(content))
    if images is not None:
        metadata = replace(metadata, precision="int8")
        content, agreement = quantize(content, module, metadata, *images)
    write_atomically(path, content)
    return Exported(path, len(content), metadata, differences, agreement)


class OnnxModule(nn.Module):
    """An exported file as a module on the CPU. It gives scores only: it has no parameters and no couplings."""

    def __init__(self, file: OnnxModel) -> None:
        super().__init__()
        task = file.metadata
        self.file = file
        self.config = {
            "name": task.model, "num_classes": len(task.classes), "in_chans": task.channels, "img_size": task.img_size
        }  # fmt: skip
        model = registered_model(task)
        if model is None and task.scores is None:
            raise MspcapsError(
                f"the file contains a {task.model}, which is not registered, and does not say whether its scores are "
                "lengths or logits: export it again, or name the module that registers it with --import"
            )
        self.scores = "lengths" if (task.scores or model.scores) == "lengths" else "logits"  # type: ignore[union-attr]
        if model is not None and model.scores == self.scores:  # otherwise an option changed scores and loss
            self.criterion = model.criterion
        recipe = {"recipe": {"data": task.data}} if task.data else {}
        self.metadata = {**({"classes": list(task.classes)} if task.named else {}), **recipe}

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.file(x.detach().numpy()))


def registered_model(task: Metadata) -> Model | None:
    """The registered model without weights, for its loss, which the file does not contain. None if there is none, or if
    this image size needs options, which the file does not contain either."""
    with contextlib.suppress(MspcapsError), torch.device("meta"):
        return create_model(
            task.model, num_classes=len(task.classes), in_chans=task.channels, img_size=task.img_size
        )  # fmt: skip
    return None


def load_onnx(path: str | Path) -> OnnxModule:
    """An exported ONNX file as a module, for `evaluate`."""
    return OnnxModule(OnnxModel(path)).eval()


def check_request(path: Path, int8: bool, calibrate: str | Path | None) -> Path:
    """Refuse impossible requests before the model is loaded."""
    if path.suffix not in SUFFIXES:
        raise MspcapsError(f"{path} does not say which format to write: choose a name that ends in .onnx or .pt2")
    if int8 and path.suffix != ".onnx":
        raise MspcapsError(f"int8 is available for ONNX only: name the file {path.stem}.onnx instead of {path.name}")
    if calibrate is not None and not int8:
        raise MspcapsError(
            f"calibration images ({calibrate}) are used for int8 only: request int8 as well, or leave them out"
        )
    if path.is_dir():
        raise MspcapsError(f"cannot write {path}: it is a folder")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, "onnx")
    return path


def describe(model: nn.Module) -> Metadata:
    config = config_of(model)
    data = trained_on(model)
    return Metadata(
        config["name"], class_names(model), config["img_size"], config["in_chans"],
        data=data if data in CATALOG else None,  # otherwise it is a path of this machine
        scores=getattr(model, "scores", "logits"), named=bool(getattr(model, "metadata", {}).get("classes")),
    )  # fmt: skip


@torch.no_grad()
def check_parity(model: nn.Module, metadata: Metadata, run: Callable[[np.ndarray], np.ndarray]) -> dict[int, float]:
    """Batch size -> largest difference of a score, on random images; too large a difference is an error."""
    generator, differences = torch.Generator().manual_seed(0), {}
    model = fp32_eval_copy(model)
    for batch in BATCHES:
        images = torch.rand(batch, metadata.channels, *metadata.img_size, generator=generator)
        expected = model(images).numpy()
        scores = run(images.numpy())
        largest = float(np.abs(scores - expected).max()) if scores.shape == expected.shape else float("inf")
        allowed = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        if not largest <= allowed:  # also for NaN
            raise MspcapsError(
                f"the scores of the exported {metadata.model} differ from PyTorch's by {largest:.1e} at batch {batch}, "
                f"more than the {allowed:.0e} allowed: nothing was written"
            )
        differences[batch] = largest
    return differences
