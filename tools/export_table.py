"""Exports every model and writes the table in docs/export.md: `python -m tools.export_table`, a few minutes.

A test checks that no model is missing. Weights are random, and so are the statistics of BatchNorm: those of a new model
would hide mistakes.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.export import export_model
from mspcaps.files import write_atomically
from mspcaps.models import create_model, list_models
from mspcaps.pages import markdown_table
from reproduction.pages import with_block

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
GENERATED = "<!-- Written by `python -m tools.export_table`. Do not edit. -->"
HEAD = """\
All registered models, with random weights, for 10 classes of 3 x 32 x 32 images: the largest difference between a
score and PyTorch's, with torch {torch} and onnxruntime {onnxruntime}:

"""
HEADS = ("model", "ONNX file", "batch 1", "batch 3", "batch 8", ".pt2, largest")


def random_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(name).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model


def row(name: str, place: Path) -> list[str]:
    model = random_model(name)
    cells = [f"`{name}`"]
    try:
        file = export_model(model, place / "model.onnx")
        cells += [f"{file.bytes / 1e6:.1f} MB", *(f"{file.differences[batch]:.0e}" for batch in (1, 3, 8))]
    except MspcapsError as error:
        cells += ["-", f"not as ONNX: {error}", "-", "-"]
    try:
        cells.append(f"{max(export_model(model, place / 'model.pt2').differences.values()):.0e}")
    except MspcapsError as error:
        cells.append(f"not as .pt2: {error}")
    return cells


def main() -> None:
    import onnxruntime  # type: ignore[import-untyped]

    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name in list_models():
            rows.append(row(name, Path(place)))
            print(*rows[-1], sep="  ", flush=True)
    head = HEAD.format(torch=torch.__version__.split("+")[0], onnxruntime=onnxruntime.__version__)
    block = head + markdown_table(HEADS, rows, range(1, len(HEADS)))
    write_atomically(PAGE, with_block(PAGE.read_text(encoding="utf-8"), "models", block, str(PAGE), GENERATED))


if __name__ == "__main__":
    main()
