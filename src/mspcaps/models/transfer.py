"""Transfer: a model for one task starts from the weights of the same architecture for another task.

Tensors that mean the same in both are copied bit for bit, BatchNorm's statistics too. The rest depends on the task:

    other classes       the head is new: every tensor whose shape depends on the number of classes; in MSPCaps, the vote
                        weights of the last routing block. Classes with other names count as other classes.
    other image size    position embeddings are interpolated on their grid; vote weights of a routing block whose grid
                        changed are new, because each belongs to one position of that grid.
    other channels      the first convolution is summed over its channels and divided evenly among the new ones: an
                        image with the same content in all channels gives the same answer as before.
    normalisation       is that of the new images: the network was trained on channels of mean 0 and standard deviation
                        1, and gets them again, however dark or flat the new images are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.patchify import Grid, OnGrid
from mspcaps.errors import MspcapsError
from mspcaps.files import sha256_of
from mspcaps.models.model import Model
from mspcaps.models.registry import build_on_meta
from mspcaps.models.weights_file import check_state, read_weights


@dataclass(frozen=True)
class Transfer:
    """What happened to every tensor; `str()` says it in one line."""

    source: str
    sha256: str
    copied: tuple[str, ...]  # bit for bit
    adapted: dict[str, str]  # name -> how
    fresh: dict[str, str]  # name -> why

    def __str__(self) -> str:
        count = len(self.copied) + len(self.adapted) + len(self.fresh)
        parts = [f"starts from {self.source}: {len(self.copied)} of {count} tensors unchanged", *_lists(self.adapted)]
        return ", ".join(parts) + "; new: " + (", ".join(_lists(self.fresh)) or "none")


def transfer(model: Model, path: Path, classes: Sequence[str], source: str) -> Transfer:
    """Gives a new model the weights of a file that fit it; `source` is what the user called the file."""
    header, tensors = read_weights(path)
    theirs, ours = header["model"], model.config
    if theirs["name"] != ours["name"]:
        raise MspcapsError(
            f"{source} holds weights of {theirs['name']}, which {ours['name']} cannot start from: "
            f"train {theirs['name']}, or name weights of {ours['name']}"
        )
    old = build_on_meta(**theirs)
    tensors = old.upgrade_state(tensors)
    check_state(old, tensors, path)
    same_classes = [*header.get("classes", classes)] == [*classes] and theirs["num_classes"] == ours["num_classes"]
    head = set() if same_classes else depends_on_classes(old)
    before, after = old.tensor_places(), model.tensor_places()
    state, copied, adapted, fresh = model.state_dict(), [], {}, {}
    for name in sorted(state.keys() - {"normalize.mean", "normalize.std"}):
        if name not in tensors:
            fresh[name] = "other options"
            continue
        tensor, shape = tensors[name].to(state[name].dtype), state[name].shape
        here, there = before.get(name), after.get(name)
        if name in head:
            fresh[name] = "other classes"
        elif here == there and tensor.shape == shape:
            state[name] = tensor
            copied.append(name)
        elif isinstance(here, OnGrid) and isinstance(there, OnGrid) and tensor.shape[1:] == shape[1:]:
            state[name] = interpolate(tensor, here, there)
            adapted[name] = "interpolated"
        elif here != there:
            fresh[name] = "other grid"
        elif differs_in_channels(tensor.shape, shape, old.in_chans, model.in_chans):
            state[name] = tensor.sum(1, keepdim=True).expand(shape) / model.in_chans
            adapted[name] = f"{old.in_chans} to {model.in_chans} channels"
        else:
            fresh[name] = "other shape"
    model.load_state_dict(state)
    return Transfer(source, sha256_of(path), tuple(copied), adapted, fresh)


def differs_in_channels(old: Sequence[int], new: Sequence[int], old_chans: int, new_chans: int) -> bool:
    """Whether these are the shapes of a convolution on the image that differ in nothing but its input channels."""
    return len(old) == 4 and old[1] == old_chans and list(new) == [old[0], new_chans, *old[2:]]


def depends_on_classes(model: Model) -> set[str]:
    """Names of the tensors whose shape depends on the number of classes, whatever the architecture."""
    other = build_on_meta(**model.config | {"num_classes": model.num_classes + 1}).state_dict()
    return {name for name, tensor in model.state_dict().items() if tensor.shape != other[name].shape}


def interpolate(position: Tensor, old: Grid, new: Grid) -> Tensor:
    """[n, d], row-major on the old grid -> [n', d] on the new one: bicubic, antialiased when shrinking."""
    plane = position.T.reshape(1, -1, *old)
    return F.interpolate(plane, size=new, mode="bicubic", antialias=True).flatten(2)[0].T.contiguous()


def _lists(named: dict[str, str]) -> list[str]:
    """{a: why, b: why} -> ["a and b (why)"]"""
    reasons: dict[str, list[str]] = {}
    for name, reason in named.items():
        reasons.setdefault(reason, []).append(name)
    return [f"{' and '.join(names)} ({reason})" for reason, names in reasons.items()]
