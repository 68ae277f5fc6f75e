"""The state of a run on disk: one file, replaced as a whole.

Tensors (master weights, moments, BatchNorm statistics) and progress (epoch, step, history, clock) are saved together,
so a run killed at any instant resumes from a state that it was in. A checksum over both detects damage on disk.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mspcaps.errors import MspcapsError
from mspcaps.files import check_readable, write_atomically
from mspcaps.training.ledger import changed_input
from mspcaps.training.recipe import Recipe

CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(progress)
    write_atomically(path, save(tensors, metadata={"progress": text, "sha256": checksum(text, tensors)}))


def checksum(progress: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the progress and of all tensors, sorted by name."""
    digest = hashlib.sha256(progress.encode())
    for name in sorted(tensors):
        digest.update(f"\0{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\0".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_checkpoint(path: Path, whole: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """-> progress, tensors; unless `whole`, no tensors."""
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            progress = json.loads(metadata["progress"])
            names = file.keys() if whole else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise MspcapsError(f"{path} is not a complete checkpoint: {error}; remove it to start the run over") from error
    if whole and "sha256" in metadata and metadata["sha256"] != checksum(metadata["progress"], tensors):
        raise MspcapsError(f"{path} is damaged: it does not match its own checksum; remove it to start the run over")
    return progress, tensors


def check_same_run(path: Path, progress: Mapping[str, Any], recipe: Recipe, now: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another recipe, or one whose images or teacher are not those of `now`."""
    if differing := recipe.differences(progress["recipe"]):
        raise MspcapsError(
            f"{path} was written by a run that differs in {differing[0]}; remove it to start over, or give this run "
            "another name"
        )
    if change := changed_input(recipe, progress, now):
        raise MspcapsError(f"{path} was written when {change}; remove it to start over")


def load_tensors(path: Path, stored: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copy a checkpoint's tensors into the run's; their names and shapes must agree."""
    if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in tensors.items()}:
        raise MspcapsError(f"{path} belongs to another model; remove it to start the run over")
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
