"""Transfer: a model for one task begins with the weights of the same architecture for another.

Whatever means the same in both is taken over bit for bit, BatchNorm's statistics included. The rest follows the task:

    other classes       the head is new: every tensor whose shape depends on the number of classes, which in MSPCaps are
                        the vote weights of the last routing block. Classes of other names are other classes.
    other image size    position embeddings are interpolated on their grid; vote weights of a routing block whose grid
                        changed are new, for each belongs to one place of that grid.
    other channels      the first convolution is summed over its channels and shared evenly among the new ones: a
                        picture that is the same in all channels gives the same answer as before.
    normalisation       is that of the new images. Weights know images of mean 0 and deviation 1 per channel, and that
                        is what they are given again, however dark or flat the new images are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.patchify import Grid, OnGrid
from mspcaps.errors import MspcapsError
from mspcaps.files import sha256_of
from mspcaps.models.model import Model
from mspcaps.models.registry import build_model
from mspcaps.models.weights_file import check_state, read_weights


@dataclass(frozen=True)
class Transfer:
    """What became of every tensor; `str()` says it in one line."""

    source: str
    sha256: str
    taken: tuple[str, ...]  # bit for bit
    fitted: dict[str, str]  # name -> how
    fresh: dict[str, str]  # name -> why

    def __str__(self) -> str:
        count = len(self.taken) + len(self.fitted) + len(self.fresh)
        parts = [f"starts from {self.source}: {len(self.taken)} of {count} tensors unchanged", *_lists(self.fitted)]
        return ", ".join(parts) + "; new: " + (", ".join(_lists(self.fresh)) or "none")


def transfer(model: Model, path: Path, classes: Sequence[str], source: str) -> Transfer:
    """Give a new model the weights of a file as far as they fit; `source` is what the user called the file."""
    header, tensors = read_weights(path)
    theirs, ours = header["model"], model.config
    if theirs["name"] != ours["name"]:
        raise MspcapsError(
            f"{source} holds weights of {theirs['name']}, which {ours['name']} cannot start from: "
            f"train {theirs['name']}, or name weights of {ours['name']}"
        )
    with torch.device("meta"):
        old = build_model(**theirs)
    tensors = old.upgrade_state(tensors)
    check_state(old, tensors, path)
    same_classes = [*header.get("classes", classes)] == [*classes] and theirs["num_classes"] == ours["num_classes"]
    head = set() if same_classes else depends_on_classes(theirs)
    before, after = old.tensor_places(), model.tensor_places()
    state, taken, fitted, fresh = model.state_dict(), [], {}, {}
    for name in sorted(state.keys() - {"normalize.mean", "normalize.std"}):
        if name not in tensors:
            fresh[name] = "other options"
            continue
        tensor, wanted = tensors[name].to(state[name].dtype), state[name].shape
        here, there = before.get(name), after.get(name)
        if name in head:
            fresh[name] = "other classes"
        elif here == there and tensor.shape == wanted:
            state[name] = tensor
            taken.append(name)
        elif isinstance(here, OnGrid) and isinstance(there, OnGrid) and tensor.shape[1:] == wanted[1:]:
            state[name] = interpolate(tensor, here, there)
            fitted[name] = "interpolated"
        elif here != there:
            fresh[name] = "other grid"
        elif differs_in_channels(tensor.shape, wanted, old.in_chans, model.in_chans):
            state[name] = tensor.sum(1, keepdim=True).expand(wanted) / model.in_chans
            fitted[name] = f"{old.in_chans} to {model.in_chans} channels"
        else:
            fresh[name] = "other shape"
    model.load_state_dict(state)
    return Transfer(source, sha256_of(path), tuple(taken), fitted, fresh)


def differs_in_channels(shape: Sequence[int], wanted: Sequence[int], theirs: int, ours: int) -> bool:
    """Whether this is a convolution on the image and nothing but the channels changed: a depthwise one has 1, too."""
    return len(shape) == 4 and list(wanted) == [shape[0], ours, *shape[2:]] and shape[1] == theirs


def depends_on_classes(config: dict[str, Any]) -> set[str]:
    """Names of the tensors whose shape depends on the number of classes, whatever the architecture."""
    with torch.device("meta"):
        one, other = (
            build_model(**{**config, "num_classes": config["num_classes"] + more}).state_dict() for more in (0, 1)
        )
    return {name for name in one if one[name].shape != other[name].shape}


def interpolate(position: Tensor, old: Grid, new: Grid) -> Tensor:
    """[n, d], row-major on the old grid -> [n', d] on the new one: bicubic, antialiased where it shrinks."""
    plane = position.T.reshape(1, -1, *old)
    return F.interpolate(plane, size=new, mode="bicubic", antialias=True).flatten(2)[0].T.contiguous()


def _lists(named: dict[str, str]) -> list[str]:
    """{a: why, b: why} -> ["a and b (why)"]"""
    reasons: dict[str, list[str]] = {}
    for name, reason in named.items():
        reasons.setdefault(reason, []).append(name)
    return [f"{' and '.join(names)} ({reason})" for reason, names in reasons.items()]
