"""int8: the convolutions of an ONNX file in eight bits, the routing in fp32.

Static quantisation in QDQ form: the ranges of the activations are fixed beforehand, from training images. Convolutions
are nearly all the work: on a trained mspcaps_t, quantising routing, shortcuts or pooling as well cost agreement and
gained no speed.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mspcaps.data import ImageSet
from mspcaps.evaluation import load_for
from mspcaps.evaluation.accuracy import all_scores
from mspcaps.export.graphs import attempt, onnx_runner, with_metadata
from mspcaps.export.metadata import INPUT, Metadata, required
from mspcaps.export.runner import as_input
from mspcaps.models import summarize

CALIBRATION, COMPARED = 128, 1000  # images at most
MEMORY = 1 << 30  # bytes: the calibration keeps the activations of all its images
BATCH = 16


@dataclass(frozen=True)
class Agreement:
    """How int8 compares with fp32, on images that it was not calibrated on."""

    same: int  # answers that are the same
    images: int
    calibrated: int  # images that set the ranges
    data: str  # where both come from


def calibration(
    model: nn.Module, data: str | Path | None, progress: Callable[[str, int, int | None], None]
) -> tuple[ImageSet, ImageSet]:
    """Training images that set the ranges, and test images to compare on."""
    train, test = (
        load_for(model, data, split, progress, "--calibrate") for split in ("train", "test")
    )  # in the model's size
    room = MEMORY // summarize(model).memory_bytes_per_image
    count = min(len(train), CALIBRATION, max(BATCH, room))
    if count > BATCH:
        count -= count % BATCH  # onnxruntime's calibration takes batches of one size only
    return random_subset(train, count), random_subset(test, COMPARED)


def quantized(
    content: bytes, model: nn.Module, about: Metadata, seen: ImageSet, others: ImageSet
) -> tuple[bytes, Agreement]:
    """An ONNX file in fp32 -> the same in int8, and how often it answers as the model in PyTorch does."""
    small = attempt(lambda: quantize_convolutions(content, as_input(seen.images.numpy()), about), about.model)
    run = onnx_runner(small)
    found = np.concatenate([run(as_input(block.numpy())) for block in others.images.split(BATCH)])
    expected = all_scores(model, others.images, BATCH).numpy()
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    return small, Agreement(same, len(others), len(seen), others.name)


def random_subset(data: ImageSet, count: int) -> ImageSet:
    """So many images spread over the set by chance, the same ones every time."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.subset(order[:count].sort().values)


def quantize_convolutions(content: bytes, images: np.ndarray, about: Metadata) -> bytes:
    """images float32 [n, c, h, w] set the ranges of the activations."""
    onnx: Any = required("onnx", "onnx")
    tools: Any = required("onnxruntime.quantization", "onnx")
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "int8.onnx"
        tools.quantize_static(
            onnx.load(io.BytesIO(content)),
            made,
            Reader(images),
            quant_format=tools.QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            # Unsigned activations are what the fast kernels of x86 take. Weights of 7 bits, because there the products
            # with 8 overflow on processors without VNNI, and nobody knows where the file will run.
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            reduce_range=True,
            calibrate_method=tools.CalibrationMethod.Percentile,
        )
        return with_metadata(onnx.load(made), about)


class Reader:
    """Calibration images as onnxruntime asks for them: batches until there are no more."""

    def __init__(self, images: np.ndarray) -> None:
        self.batches: Iterator[np.ndarray] = iter(np.split(images, range(BATCH, len(images), BATCH)))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}
