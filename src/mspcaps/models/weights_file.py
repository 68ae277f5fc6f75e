"""Weights files: safetensors whose header has everything that is needed to build the model again."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mspcaps.errors import MspcapsError, nearest
from mspcaps.files import check_readable, write_atomically
from mspcaps.models.model import TASK, config_of
from mspcaps.models.registry import model_options, registered_models

OLD_PYTORCH = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # after the two bytes of pickle's protocol


def save_weights(
    path: str | Path, model: nn.Module, tensors: dict[str, Tensor] | None = None, /, **metadata: Any
) -> None:
    """Writes the model's state (or `tensors` instead), its config and `metadata`."""
    if reserved := metadata.keys() & {"model", "format"}:
        raise MspcapsError(f"model.metadata cannot have the key {min(reserved)!r}: the file stores that itself")
    tensors = model.state_dict() if tensors is None else tensors
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        header = {key: json.dumps(value) for key, value in {"model": config_of(model), **metadata}.items()}
    except (TypeError, ValueError) as error:
        raise MspcapsError(f"model.metadata can hold text, numbers, lists and dictionaries only: {error}") from error
    write_atomically(path, sort_metadata(save(tensors, metadata=header)))


def sort_metadata(content: bytes) -> bytes:
    """The same safetensors file with sorted metadata: the library writes them in any order, but the same weights
    should give the same file."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def check_state(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Refuses tensors whose names, shapes or kinds of numbers are not the model's."""
    own = model.state_dict()
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())
        raise MspcapsError(
            f"{path} does not fit the model: {odd[0]} and {len(odd) - 1} more tensors are in one but not in the other"
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise MspcapsError(
                f"{path} does not fit the model: {name} is {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            )
        if own[name].is_floating_point() != tensor.is_floating_point():
            raise MspcapsError(f"{path} does not fit the model: {name} is {tensor.dtype}, not {own[name].dtype}")


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors that `save_weights` wrote, in the precision of the file."""
    if path.is_dir():
        raise MspcapsError(f"{path} is a folder: name the weights file in it, such as {path / 'model.safetensors'}")
    if not path.is_file():
        raise MspcapsError(f"there is no weights file {path}")
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise MspcapsError(f"{path} is an exported file: `mspcaps predict` takes .onnx, torch.export.load takes .pt2")
    check_readable(path)
    if is_pytorch(path):
        raise MspcapsError(
            f"{path} is a PyTorch file, but only safetensors is read: load its state dict into "
            "model = create_model(...) with model.load_state_dict(torch.load(FILE, weights_only=True)), then "
            "mspcaps.save_pretrained(model, FOLDER) writes FOLDER/model.safetensors"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = {key: json.loads(value) for key, value in (file.metadata() or {}).items() if key != "format"}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise MspcapsError(f"{path} is not a complete safetensors file: {error}") from error
    config = header.get("model")
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        raise MspcapsError(f"{path} was not written by mspcaps: its header names no model")
    if config["name"] not in registered_models():
        hint = nearest(config["name"], registered_models(), "import the code that does.")
        raise MspcapsError(f"{path} holds a {config['name']}, which no imported code registers: {hint}")
    if unknown := config.keys() - {"name", *TASK, *model_options(config["name"])}:
        raise MspcapsError(f"{path} needs a newer mspcaps: its model has the unknown setting {sorted(unknown)[0]!r}")
    check_header(header, path)
    if any(not torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point()):
        raise MspcapsError(f"{path} holds weights that are not finite")
    return header, tensors


def is_pytorch(path: Path) -> bool:
    """Whether torch.save wrote it: a zip file that begins with data.pkl or, before torch 1.6, a magic number."""
    with path.open("rb") as file:
        start = file.read(1024)
    return (start.startswith(b"PK") and b"/data.pkl" in start) or start[2:].startswith(OLD_PYTORCH)


def check_header(header: dict[str, Any], path: Path) -> None:
    """Refuses malformed classes and recipes, which a file made by hand may have."""
    classes, recipe, count = header.get("classes"), header.get("recipe"), header["model"].get("num_classes")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise MspcapsError(f"{path}: the classes in its header are not a list of names")
    if classes is not None and len({*classes}) < len(classes):
        raise MspcapsError(f"{path}: two classes in its header have the same name")
    if classes is not None and count is not None and len(classes) != count:
        raise MspcapsError(f"{path}: its header names {len(classes)} classes, but the model has {count}")
    if recipe is not None and not isinstance(recipe, dict):
        raise MspcapsError(f"{path}: the recipe in its header is not a table")
    if recipe and not isinstance(recipe.get("data", ""), str):
        raise MspcapsError(
            f"{path}: the data of the recipe in its header is {recipe['data']!r:.80}, which is not a name"
        )
