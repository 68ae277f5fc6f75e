"""Answers of an exported model through onnxruntime, without torch: numpy, Pillow and onnxruntime are enough.

`mspcaps predict model.onnx PICTURE` comes here. Pictures are read by the code that reads them for the model in PyTorch.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mspcaps.errors import MspcapsError
from mspcaps.evaluation.predict import Paths, Prediction, classify_pictures
from mspcaps.export.metadata import INPUT, Metadata, required


class OnnxModel:
    """A file of `export_model`: float32 images in [0, 1], [b, c, h, w] -> class scores float32 [b, K]."""

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        """`threads` is the number of CPU threads; 0 takes all processors."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise MspcapsError(f"there is no file {path}")
        self.session = open_session(path, threads)
        self.metadata = about = Metadata.from_strings(self.session.get_modelmeta().custom_metadata_map, path)
        shapes = [tuple(port.shape[1:]) for port in (*self.session.get_inputs(), *self.session.get_outputs())]
        if shapes != [(about.channels, *about.img_size), (len(about.classes),)]:
            raise MspcapsError(f"{path}: its header does not fit the model, which has the shapes {shapes}")

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return self.session.run(None, {INPUT: images})[0]

    def predict(self, paths: Paths, top: int = 3, batch_size: int = 64) -> list[Prediction]:
        """One prediction per picture, in order; a folder means all pictures below it."""
        return list(self.stream_predictions(paths, top, batch_size))

    def stream_predictions(self, paths: Paths, top: int = 3, batch_size: int = 64) -> Iterator[Prediction]:
        """As `predict`, but the first answers are there while later pictures are still to be read."""
        about = self.metadata
        return classify_pictures(
            lambda images: self(as_input(images)), paths, about.img_size, about.channels, about.classes, top, batch_size
        )


def as_input(images: np.ndarray) -> np.ndarray:
    """uint8 [n, c, h, w] -> float32 in [0, 1]."""
    return images.astype(np.float32) / np.float32(255)


def open_session(source: Path | bytes, threads: int = 0):  # type: ignore[no-untyped-def]  # onnxruntime may be missing
    """An onnxruntime.InferenceSession on the CPU of a file or of its content."""
    runtime = required("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only; they come as exceptions too
    # Its threads would spin on for a while after an answer, at the cost of whoever computes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        given = source if isinstance(source, bytes) else str(source)
        return runtime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        name = "the exported graph" if isinstance(source, bytes) else str(source)
        raise MspcapsError(f"{name} is not a model that onnxruntime can read: {error}") from error
