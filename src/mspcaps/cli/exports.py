"""`mspcaps export`."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from mspcaps.cli.options import Maybe
from mspcaps.cli.progress import counting
from mspcaps.files import format_bytes


def export(
    weights: Positional[str],
    out: Positional[Path],
    int8: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    calibrate: Maybe[str] = None,
) -> None:
    """Export trained weights to an ONNX or torch.export file, after checking that its scores match PyTorch's.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        out: File to write: NAME.onnx, or NAME.pt2 for torch.export.load.
        int8: ONNX only: quantise the convolutions to eight bits and report how many predictions stay the same.
        calibrate: Data set or folder that sets the int8 ranges; default: the data the weights were trained on.
    """
    from mspcaps.export.model import check_request, export_model

    check_request(out, int8, calibrate)
    with counting() as progress:
        made = export_model(weights, out, int8, calibrate, progress)
    about = made.metadata
    height, width = about.img_size
    task = f"{len(about.classes)} classes, images of {about.channels} x {height} x {width}"
    print(f"{made.path}: {about.model}, {task}, {about.precision}, {format_bytes(made.bytes)}")
    shown = ", ".join(f"{difference:.1e} at batch {batch}" for batch, difference in made.differences.items())
    print(f"largest difference from PyTorch's scores, in fp32: {shown}")
    if found := made.agreement:
        print(
            f"int8 gives the same answer as fp32 for {found.same:,} of {found.images:,} test images of {found.data} "
            f"({100 * found.same / found.images:.1f} %); {found.calibrated:,} of its training images set the ranges"
        )
