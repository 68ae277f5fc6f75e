"""`export_model`: a trained model as one file for elsewhere, written only after it gave PyTorch's answers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.export.graphs import fp32_eval_copy, onnx_runner, pt2_runner, to_onnx, to_pt2, traced
from mspcaps.export.metadata import Metadata, required
from mspcaps.export.quantize import Agreement, calibration, quantized
from mspcaps.export.runner import OnnxModel
from mspcaps.files import sha256_of, write_atomically
from mspcaps.models import Model, as_model, class_names, config_of, create_model, unwrapped, weights_path

BATCHES = (1, 3, 8)
TOLERANCE = 1e-5  # of scores up to 1, such as capsule lengths; of larger ones, relative to the largest
SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked."""

    path: Path
    bytes: int
    metadata: Metadata
    differences: dict[int, float]  # batch -> largest difference of a score to PyTorch's, in fp32
    agreement: Agreement | None = None  # of int8


def export_model(
    model: nn.Module | str | Path,
    path: str | Path,
    int8: bool = False,
    calibrate: str | Path | None = None,
    progress: Callable[[str, int, int | None], None] = lambda what, done, total: None,
) -> Exported:
    """Export a model to `path`: .onnx for onnxruntime, .pt2 for torch.export.load, both for any batch size.

    Before anything is written, the scores are compared with the model's in batches of 1, 3 and 8. `int8` (ONNX only)
    quantises the convolutions, with ranges set on training images of `calibrate`, a data set or a folder; default: the
    data the model was trained on. `model` may be a module, a weights file or the name of shipped weights; for the
    latter two the metadata includes the sha256 of the file.
    """
    path = check_request(Path(path).expanduser(), int8, calibrate)
    given, model = model, unwrapped(as_model(model))
    about = describe(model)
    if not isinstance(given, nn.Module):  # a model may have been trained on since its file was read
        about = replace(about, sha256=sha256_of(weights_path(given)))
    images = calibration(model, calibrate, progress) if int8 else None
    program, agreement = traced(model), None
    if path.suffix == ".onnx":
        content = to_onnx(program, about)
        differences = check_parity(model, about, onnx_runner(content))
    else:
        content = to_pt2(program, about)
        differences = check_parity(model, about, pt2_runner(content))
    if images is not None:
        about = replace(about, precision="int8")
        content, agreement = quantized(content, model, about, *images)
    write_atomically(path, content)
    return Exported(path, len(content), about, differences, agreement)


def load_onnx(path: str | Path) -> Model:
    """The model that an ONNX file was exported from, on the CPU, answering with the file: `evaluate` measures it."""
    file = OnnxModel(path)
    about = file.metadata
    model = create_model(about.model, num_classes=len(about.classes), in_chans=about.channels, img_size=about.img_size)
    recipe = {"recipe": {"data": about.data}} if about.data else {}
    model.metadata = {"classes": list(about.classes), **recipe}
    model.forward = lambda images: torch.from_numpy(file(images.numpy()))  # type: ignore[method-assign, assignment]
    return model.eval()


def check_request(path: Path, int8: bool, calibrate: str | Path | None) -> Path:
    """What can be refused at once is, before the model is looked at."""
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
            required(package, "onnx")
    return path


def describe(model: nn.Module) -> Metadata:
    config = config_of(model)
    data = getattr(model, "metadata", {}).get("recipe", {}).get("data")
    return Metadata(
        config["name"], class_names(model), config["img_size"], config["in_chans"],
        data=data if data in CATALOG else None,  # of own pictures it would be a path of this machine
    )  # fmt: skip


@torch.no_grad()
def check_parity(model: nn.Module, about: Metadata, run: Callable[[np.ndarray], np.ndarray]) -> dict[int, float]:
    """Batch -> largest difference of a score, on random images; a sentence if one is too large."""
    generator, differences = torch.Generator().manual_seed(0), {}
    model = fp32_eval_copy(model)
    for batch in BATCHES:
        images = torch.rand(batch, about.channels, *about.img_size, generator=generator)
        expected = model(images).numpy()
        found = run(images.numpy())
        largest = float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")
        allowed = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        if not largest <= allowed:  # also when it is not a number
            raise MspcapsError(
                f"the exported {about.model} differs from PyTorch by {largest:.1e} at batch {batch}, more than the "
                f"{allowed:.0e} allowed: nothing was written"
            )
        differences[batch] = largest
    return differences
