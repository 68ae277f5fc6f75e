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
from mspcaps.files import NUMBER, check_form, read_form, write_json
from mspcaps.models import list_models, summarize
from mspcaps.training import ledger

Log = Callable[[str], None]
CPU = torch.device("cpu")


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


_TIMES = {"median": NUMBER, "lowest": NUMBER, "highest": NUMBER}
_COST = {"ms_per_image": NUMBER, "system_ms_per_image": NUMBER, "peak_memory_bytes": NUMBER}
_RATE = {"images_per_second": NUMBER, "relative": NUMBER, "form": str}
_FORM = {
    "what": str, "model": str, "quick": bool,
    "environment": {"device": str, "date": str, "load_before": NUMBER, "busy": bool, "software": {"torch": str}},
}  # fmt: skip
_FORMS: dict[str, Any] = {  # what the tables need
    "train": {
        "batch_size": int, "matmul": {"n": int, "precision": str, "tflops": NUMBER},
        "ratios": {"ours_vs_reference": NUMBER, "ours_vs_resnet": NUMBER},
        "variants": {
            "resnet": dict,
            "*": {
                "model": str, "form": str, "precision": str, "ms_per_step": _TIMES, "images_per_second": NUMBER,
                "seconds_300_epochs": NUMBER, "tflops": NUMBER, "share_of_matmul": NUMBER,
            },
        },
    },
    "infer": {
        "precision": str, "unavailable": dict,
        "ratios": {"latency_ours_vs_resnet": NUMBER, "throughput_ours_vs_resnet": NUMBER},
        "variants": {
            "resnet": dict,
            "*": {
                "model": str,
                "forms": [{
                    "form": str, "latency_ms": {"median": NUMBER, "p95": NUMBER},
                    "throughput": [{"batch": int, "images_per_second": {"median": NUMBER}}],
                }],
            },
        },
    },
    "families": {
        "reference": str, "batch_size": int, "inference_batch_size": int, "failed": dict,
        "families": {
            "*": {
                "params": int, "macs": int, "infer": _RATE,
                "train": {**_RATE, "precision": str, "ms_per_step": _TIMES},
            }
        },
    },
    "attack": {
        "images": int, "steps": int, "batch_size": int, "unavailable": dict,
        "variants": {"*": {"seconds": _TIMES, "images_per_second": NUMBER, "fooled": int}},
    },
    "memory": {
        "batch_size": int, "sizes": [{"img_size": int, "given_back": _COST, "kept": _COST}],
        "refused": [
            {"model": str, "img_size": int, "seconds": NUMBER, "needed_bytes": int, "free_bytes": int, "answer": str}
        ],
    },
    "pixels": {
        "refused": {"*": str},
        "sizes": [{
            "img_size": int, "batch_size": int, "ns_per_pixel": NUMBER, "bytes_per_pixel": NUMBER,
            "relative_time": NUMBER, "relative_memory": NUMBER,
        }],
    },
}  # fmt: skip
KINDS = tuple(_FORMS)


def read_result(path: Path) -> dict[str, Any]:
    """A result from its file, with everything that its tables need."""
    what = "a measurement of `mspcaps bench`"
    result: dict[str, Any] = read_form(path, _FORM, what)
    if result["what"] not in KINDS:
        raise MspcapsError(f"{path} is not {what}: what is {result['what']!r:.40}, not {', '.join(KINDS)}")
    check_form(path, result, _FORMS[result["what"]], what)
    return result


def slug(text: str) -> str:
    """NVIDIA H200 -> nvidia-h200"""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def yardstick(model: str) -> str:
    """The ResNet with the nearest parameter count: resnet20 for T, resnet18 for L."""
    params = summarize(model).params
    others = [name for name in list_models("resnet*") if name != model]
    return min(others, key=lambda name: abs(math.log(summarize(name).params / params)))
