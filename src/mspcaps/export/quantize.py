"""int8: the convolutions of an ONNX file in eight bits, the routing in fp32.

Static quantisation in QDQ form: training images fix the ranges of the activations beforehand. Convolutions are nearly
all the work: on a trained mspcaps_t, quantising routing, shortcuts or pooling as well reduced the agreement with fp32
and gained no speed.
"""

import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from mspcaps.data import ImageSet
from mspcaps.data.imageset import random_numbers
from mspcaps.evaluation import load_for
from mspcaps.evaluation.accuracy import all_scores
from mspcaps.export.graphs import exporting, onnx_runner, with_metadata
from mspcaps.export.runner import INPUT, Metadata, as_input, require
from mspcaps.files import ProgressFn
from mspcaps.models import summarize

MAX_CALIBRATION_IMAGES, MAX_COMPARED_IMAGES = 128, 1000
MAX_CALIBRATION_BYTES = 1 << 30  # calibration keeps the activations of all its images
BATCH = 16


@dataclass(frozen=True)
class Agreement:
    """How often int8 and fp32 agree, on images that were not used for calibration."""

    same: int  # number of equal answers
    images: int
    calibrated: int  # number of calibration images
    data: str  # the data set of both kinds of images


def load_calibration(model: nn.Module, data: str | Path | None, progress: ProgressFn) -> tuple[ImageSet, ImageSet]:
    """Training images for the calibration, and test images for the comparison."""
    train, test = (load_for(model, data, split, progress, "--calibrate") for split in ("train", "test"))
    room = MAX_CALIBRATION_BYTES // summarize(model).memory_bytes_per_image
    count = min(len(train), MAX_CALIBRATION_IMAGES, max(BATCH, room))
    if count > BATCH:
        count -= count % BATCH  # onnxruntime's calibration takes batches of equal size only
    calibration, comparison = random_numbers(count, len(train)), random_numbers(MAX_COMPARED_IMAGES, len(test))
    return train.subset(calibration), test.subset(comparison)


def quantize(
    content: bytes, model: nn.Module, metadata: Metadata, train: ImageSet, test: ImageSet
) -> tuple[bytes, Agreement]:
    """An ONNX file in fp32 -> the same in int8, and how often it agrees with the model in PyTorch."""
    with exporting(metadata.model):
        int8 = quantize_convolutions(content, as_input(train.images.numpy()), metadata)
    run = onnx_runner(int8)
    scores = np.concatenate([run(as_input(block.numpy())) for block in test.images.split(BATCH)])
    expected = all_scores(model, test.images, BATCH).numpy()
    same = int((scores.argmax(1) == expected.argmax(1)).sum())
    return int8, Agreement(same, len(test), len(train), test.name)


def quantize_convolutions(content: bytes, images: np.ndarray, metadata: Metadata) -> bytes:
    """images float32 [n, c, h, w] fix the ranges of the activations."""
    onnx: Any = require("onnx", "onnx")
    tools: Any = require("onnxruntime.quantization", "onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        tools.quantize_static(
            onnx.load(io.BytesIO(content)),
            path,
            Reader(images),
            quant_format=tools.QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            # The fast kernels of x86 take unsigned activations. Weights have 7 bits, because with 8 the products
            # overflow on x86 processors without VNNI, and the file may run on any.
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            reduce_range=True,
            calibrate_method=tools.CalibrationMethod.Percentile,
        )
        return with_metadata(onnx.load(path), metadata)


class Reader:
    """Calibration images in the form onnxruntime expects: batches until there are no more."""

    def __init__(self, images: np.ndarray) -> None:
        self.batches: Iterator[np.ndarray] = iter(np.split(images, range(BATCH, len(images), BATCH)))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}
