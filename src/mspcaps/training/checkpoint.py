"""The state of a run on disk: one file, replaced whole.

Tensors (master weights, moments, BatchNorm statistics) and progress (epoch, step, history, clock) travel together, so
a run killed at any instant continues from a state that existed.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mspcaps.errors import MspcapsError
from mspcaps.files import check_readable, write_atomically
from mspcaps.training.recipe import Recipe

CHECKPOINT = "checkpoint.safetensors"


def run_folder(out: Path, recipe: Recipe) -> Path:
    return out / recipe.dataset / recipe.model / recipe.run_name


def save_checkpoint(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(tensors, metadata={"progress": json.dumps(progress)}))


def read_checkpoint(path: Path, whole: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """-> progress, tensors; of a file that is not wanted whole, none."""
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            progress = json.loads((file.metadata() or {})["progress"])
            names = file.keys() if whole else ()
            return progress, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise MspcapsError(f"{path} is not a complete checkpoint: {error}; remove it to start the run over") from error


def load_tensors(path: Path, stored: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copies what a checkpoint holds into the given tensors, if it holds them all."""
    if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in tensors.items()}:
        raise MspcapsError(f"{path} belongs to another model; remove it to start the run over")
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
