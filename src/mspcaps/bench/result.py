"""What every benchmark records besides its figures, and where the file goes."""

import datetime
import hashlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mspcaps.errors import MspcapsError
from mspcaps.files import write_json
from mspcaps.models import list_models, summarize
from mspcaps.training import ledger

Log = Callable[[str], None]
CPU = torch.device("cpu")


def silent(line: str) -> None:
    """The default log of every benchmark."""


def environment(device: torch.device) -> dict[str, Any]:
    """Machine and software. `busy` means that other programs were computing when it began."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "device": ledger.device_name(device),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "load_before": round(load, 2),
        "busy": load > max(0.5, 0.25 * (os.cpu_count() or 1)),  # some of many cores may be in use
        "software": ledger.software(),
        "commit": ledger.git_commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def new_result(
    what: str, model: str, device: torch.device, quick: bool, conventions: dict[str, str], **more: Any
) -> dict[str, Any]:
    """The beginning of every result. Call it before measuring starts, which loads the machine."""
    facts = {"environment": environment(device), "conventions": conventions}
    return {"what": what, "model": model, "quick": quick, **facts, **more}


def choose_batch(size: int | None, default: int, training: bool = False) -> int:
    """The size that the user asks for, checked, or else the default."""
    if size is not None and size < 1 + training:
        why = "BatchNorm needs at least 2 images in a batch" if training else "must be at least 1"
        raise MspcapsError(f"batch_size is {size}, but {why}")
    return default if size is None else size


def write_result(results: Path, result: dict[str, Any]) -> Path:
    """results/bench/<what>-<model>-<device>-torch<version>[-quick].json; many models become their number and a hash."""
    model, machine = result["model"], result["environment"]
    if len(model) > 60:  # a file system takes 255 bytes for the whole name
        model = f"{model.count('+') + 1}-models-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    device, version = slug(machine["device"]), machine["software"]["torch"].split("+")[0]
    quick = "-quick" if result["quick"] else ""
    path = results / "bench" / f"{result['what']}-{model}-{device}-torch{version}{quick}.json"
    write_json(path, result)
    return path


def slug(text: str) -> str:
    """NVIDIA H200 -> nvidia-h200"""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def yardstick(model: str) -> str:
    """The ResNet with the nearest parameter count: resnet20 for T, resnet18 for L."""
    params = summarize(model).params
    others = [name for name in list_models("resnet*") if name != model]
    return min(others, key=lambda name: abs(math.log(summarize(name).params / params)))
