"""`mspcaps explain`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from mspcaps.cli.common import Maybe, show_progress
from mspcaps.errors import MspcapsError


def explain(
    weights: Positional[str],
    paths: Annotated[Positional[list[Path]], tyro.conf.arg(help_behavior_hint="")],
    label: Annotated[Maybe[str], tyro.conf.arg(name="class")] = None,
    out: Path = Path("runs/explain"),
    device: Maybe[str] = None,
) -> int:
    """Write an HTML page per picture showing why the model decided as it did: parts, heat maps, part-whole tree.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        paths: Picture files or folders of pictures.
        label: The class to explain; default: the predicted class, next to the runner-up.
        out: Folder for the pages, with a subfolder per model.
        device: cpu or cuda; default: the GPU if there is one.
    """
    from mspcaps.explanation.files import write_pages
    from mspcaps.models import load_model
    from mspcaps.training import choose_device

    if not paths:
        raise MspcapsError("name at least one picture or folder")
    failed = 0
    with show_progress() as progress:
        model, name = load_model(weights).to(choose_device(device)), weights_name(weights)
        for written in write_pages(model, paths, out / name, label, progress.update, name):
            if written.error is None:
                print(f"{written.picture}: {written.answer}  {written.page}")
            else:
                print(f"error: {written.error}", file=sys.stderr)
                failed += 1
    return 1 if failed else 0


def weights_name(weights: str) -> str:
    """What to call them: mspcaps_t.cifar10, or mine-seed0 for .../mine-seed0/last.safetensors."""
    path = Path(weights)
    if path.suffix != ".safetensors":
        return path.name
    return path.stem if path.stem not in ("last", "best", "model") else path.resolve().parent.name
