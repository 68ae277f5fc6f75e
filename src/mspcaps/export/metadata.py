"""What an exported file says about itself, so that whoever runs it needs neither mspcaps nor torch."""

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mspcaps import __version__
from mspcaps.errors import MspcapsError

INPUT, OUTPUT = "image", "scores"  # names in the graph


@dataclass(frozen=True)
class Metadata:
    """The task that a model was made for."""

    model: str
    classes: tuple[str, ...]  # in the order of the scores
    img_size: tuple[int, int]  # height, width
    channels: int  # 1: grey, 3: RGB
    precision: str = "fp32"
    data: str | None = None  # the data set it was trained on, if it is one of the catalog
    sha256: str | None = None  # of the weights file

    def to_strings(self) -> dict[str, str]:
        """ONNX keeps strings only: lists and numbers are JSON."""
        known = {key: value for key, value in (("data", self.data), ("sha256", self.sha256)) if value}
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
            **known,
        }

    @classmethod
    def from_strings(cls, strings: Mapping[str, str], path: Path) -> "Metadata":
        """`path` is for the sentence that says what is wrong with the file."""
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
            )
        except (KeyError, ValueError, TypeError) as error:
            raise MspcapsError(
                f"{path} was not exported by mspcaps: its metadata lacks the classes and the image size"
            ) from error


def required(package: str, extra: str) -> ModuleType:
    """An optional package, or the sentence that tells how to get it."""
    if extra == "onnx":  # onnxruntime, else, writes an id of this machine and reports to Microsoft as it is imported
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MspcapsError(
            f"this needs {error.name}, which is not installed: pip install 'mspcaps[{extra}]'"
        ) from error
