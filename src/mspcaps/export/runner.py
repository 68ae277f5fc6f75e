"""Run an exported model with onnxruntime, without torch: NumPy, Pillow and onnxruntime are enough.

`mspcaps predict model.onnx PICTURE` uses this. Pictures are read by the same code as for a model in PyTorch.
"""

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from mspcaps import __version__
from mspcaps.errors import MspcapsError, warn
from mspcaps.evaluation.predict import (
    Pictures,
    Prediction,
    Predictions,
    as_input,
    classify_pictures,
    leave_out_broken,
)

INPUT, OUTPUT = "image", "scores"  # names in the graph


@dataclass(frozen=True)
class Metadata:
    """What an exported file says about itself, so that it can run without mspcaps and torch."""

    model: str
    classes: tuple[str, ...]  # in the order of the scores
    img_size: tuple[int, int]  # height, width
    channels: int  # 1: grey, 3: RGB
    precision: str = "fp32"
    data: str | None = None  # the data set it was trained on, if it is in the catalog
    sha256: str | None = None  # of the weights file
    scores: str | None = None  # lengths or logits; older files do not say
    named: bool = True  # otherwise the classes have numbers instead of names

    def to_strings(self) -> dict[str, str]:
        """ONNX stores only strings, so lists and numbers are JSON."""
        return {
            "producer": f"mspcaps {__version__}",
            "task": "image-classification",
            "input": f"{INPUT}: float32 [batch, channels, height, width] in [0, 1]; normalisation is part of the model",
            "output": f"{OUTPUT}: float32 [batch, classes], the highest is the answer",
            "model": self.model,
            "classes": json.dumps(self.classes, ensure_ascii=False),
            "img_size": json.dumps(self.img_size),
            "channels": json.dumps(self.channels),
            "precision": self.precision,
            **{key: value for key in ("data", "sha256", "scores") if (value := getattr(self, key))},
            **({} if self.named else {"named": "false"}),
        }

    @classmethod
    def from_strings(cls, strings: Mapping[str, str], path: Path) -> "Metadata":
        """`path` is for the error message."""
        try:
            height, width = json.loads(strings["img_size"])
            return cls(
                model=strings["model"],
                classes=tuple(str(name) for name in json.loads(strings["classes"])),
                img_size=(int(height), int(width)),
                channels=int(strings["channels"]),
                precision=strings["precision"],
                data=strings.get("data"),
                sha256=strings.get("sha256"),
                scores=strings.get("scores"),
                named=strings.get("named") != "false",
            )
        except (KeyError, ValueError, TypeError) as error:
            raise MspcapsError(
                f"{path} was not exported by mspcaps: its metadata lacks the classes and the image size"
            ) from error


class OnnxModel:
    """A file from `export_model`: float32 images in [0, 1], [b, c, h, w] -> class scores float32 [b, K]."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path).expanduser()
        if not path.is_file():
            raise MspcapsError(f"there is no file {path}")
        self.session = open_session(path)
        self.metadata = metadata = Metadata.from_strings(self.session.get_modelmeta().custom_metadata_map, path)
        shapes = [tuple(port.shape[1:]) for port in (*self.session.get_inputs(), *self.session.get_outputs())]
        if shapes != [(metadata.channels, *metadata.img_size), (len(metadata.classes),)]:
            raise MspcapsError(f"the metadata of {path} do not match its model, which has the shapes {shapes}")

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return self.session.run(None, {INPUT: images})[0]

    def predict(self, pictures: Pictures, top: int = 3, batch_size: int = 64, skip_broken: bool = False) -> Predictions:
        """As `mspcaps.predict`: paths, Pillow images, arrays, or a list of them."""
        predictions = self.stream_predictions(pictures, top, batch_size)
        return Predictions(leave_out_broken(predictions, warn) if skip_broken else predictions)

    def stream_predictions(self, pictures: Pictures, top: int = 3, batch_size: int = 64) -> Iterator[Prediction]:
        """As `predict`, but the first predictions come while later pictures are still being read."""
        task = self.metadata
        return classify_pictures(
            lambda images: self(as_input(images)), pictures, task.img_size, task.channels, task.classes, top, batch_size
        )


def open_session(source: Path | bytes, threads: int = 0):  # type: ignore[no-untyped-def]  # onnxruntime may be missing
    """An onnxruntime.InferenceSession on the CPU, for a file or its content; 0 threads means one per processor core."""
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only, which are raised as exceptions, too
    # Its threads would go on spinning after an answer and slow down other work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        model = source if isinstance(source, bytes) else str(source)
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base class
        name = "the exported graph" if isinstance(source, bytes) else str(source)
        raise MspcapsError(f"{name} is not a model that onnxruntime can read: {error}") from error


def require(package: str, extra: str) -> ModuleType:
    """Import an optional package, or tell how to install it."""
    if extra == "onnx":  # otherwise onnxruntime stores an id of this machine and reports to Microsoft
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MspcapsError(
            f"this needs {error.name}, which is not installed: pip install 'mspcaps[{extra}]'"
        ) from error
