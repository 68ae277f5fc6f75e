"""Trained models for use elsewhere: ONNX and torch.export files, checked against PyTorch, and the Hugging Face hub.

`export_model(model, "model.onnx")` writes a file, `OnnxModel("model.onnx")` runs it without torch, and
`load_onnx("model.onnx")` makes it a module that `evaluate` measures.
"""

from typing import TYPE_CHECKING

from mspcaps.export.runner import Metadata, OnnxModel
from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.export.hub import from_pretrained, push_to_hub, save_pretrained
    from mspcaps.export.model import Exported, export_model, load_onnx

__all__ = [
    "Exported", "Metadata", "OnnxModel", "export_model", "from_pretrained", "load_onnx", "push_to_hub",
    "save_pretrained",
]  # fmt: skip

# These need torch, the rest does not.
__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("Exported", "export_model", "load_onnx"), "model"),
        **dict.fromkeys(("from_pretrained", "push_to_hub", "save_pretrained"), "hub"),
    },
)
