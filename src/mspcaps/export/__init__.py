"""Trained models for elsewhere: ONNX and torch.export files, checked against PyTorch, and the Hugging Face hub.

`export_model(model, "model.onnx")` writes a file, `OnnxModel("model.onnx")` runs it, and neither it nor this package
imports torch. `load_onnx("model.onnx")` is the file as a module, to be measured.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mspcaps.export.hub import from_pretrained, push_to_hub, save_pretrained
    from mspcaps.export.metadata import Metadata
    from mspcaps.export.model import Exported, export_model, load_onnx
    from mspcaps.export.runner import OnnxModel

__all__ = [
    "Exported", "Metadata", "OnnxModel", "export_model", "from_pretrained", "load_onnx", "push_to_hub",
    "save_pretrained",
]  # fmt: skip

# Loaded at first use: whoever runs an exported model need not wait for torch, or have it.
_HOMES = {
    "Exported": "model",
    "Metadata": "metadata",
    "OnnxModel": "runner",
    "export_model": "model",
    "from_pretrained": "hub",
    "load_onnx": "model",
    "push_to_hub": "hub",
    "save_pretrained": "hub",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
