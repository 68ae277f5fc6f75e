"""The device that a run computes on, its free memory, and the precision and engine that suit it."""

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import nn

from mspcaps.errors import MspcapsError

Engine = Literal["eager", "compile", "cudagraph"]
MEMINFO, CPUINFO, CGROUP = Path("/proc/meminfo"), Path("/proc/cpuinfo"), Path("/sys/fs/cgroup")  # Linux
WORTH_COMPILING = 1_000_000  # images to train on, over all epochs, from which compiling for a CPU pays off


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """A device by name; by default the GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise MspcapsError(f"there is no device {str(name)!r}: use cpu, cuda or mps")
    if device.type == "mps" and not torch.backends.mps.is_available():
        missing = "finds no Apple GPU" if torch.backends.mps.is_built() else "is a build without support for Apple GPUs"
        raise MspcapsError(f"there is no device {str(name)!r}, since this PyTorch {missing}: use --device cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MspcapsError("this PyTorch sees no GPU: use --device cpu, or install a build of PyTorch with CUDA")
    if device.type == "cuda":
        if device.index is None:  # torchrun gives each process of a machine its own GPU
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= torch.cuda.device_count():
            raise MspcapsError(f"there is no device {str(device)!r}: this machine has {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(device)  # graphs are recorded on the current device
    elif device.type == "cpu":
        keep_freed_memory()
    return device


@cache
def keep_freed_memory() -> None:
    """Keep freed blocks of up to 2 GB for the next step. By default glibc returns every large block to the system and
    then waits for new, zeroed pages, which takes half the time of a step on images of 96 pixels."""
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    with contextlib.suppress(OSError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, most)
        libc.mallopt(mmap_threshold, most)


def choose_engine(
    name: str | None, device: torch.device, processes: int = 1, images: int = 0, model: nn.Module | None = None
) -> Engine:
    """An engine by name; by default the fastest that the device supports. On a CPU, compiling pays off only for a
    single process that trains on many `images`, since several processes would each compile, and not for a `model` with
    depthwise convolutions, which is faster eager on several threads."""
    if name is not None and name not in get_args(Engine):
        raise MspcapsError(f"there is no engine {name!r}: the engines are {', '.join(get_args(Engine))}")
    if name == "cudagraph" and device.type != "cuda":
        raise MspcapsError("the engine cudagraph is for GPUs only: use eager or compile")
    if name is not None:
        return cast(Engine, name)
    if device.type == "cuda":
        return "cudagraph"
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)] if model is not None else []
    depthwise = any(conv.groups == conv.in_channels > 1 for conv in convs)
    worth_it = device.type == "cpu" and processes == 1 and images >= WORTH_COMPILING and not depthwise
    return "compile" if worth_it and compiler_works() else "eager"


@cache
def compiler_works() -> bool:
    """Whether torch.compile works here; on a CPU it needs a C++ compiler."""
    try:
        torch.compile(torch.nn.Softplus())(torch.zeros(1))
    except torch._dynamo.exc.BackendCompilerFailed:
        return False
    return True


def working_precision(device: torch.device, precision: str | None = None) -> torch.dtype | None:
    """bf16, or None for fp32; by default bf16 on a GPU that supports it."""
    supported = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if precision == "bf16" and not supported:
        raise MspcapsError("precision is bf16, which this GPU does not support: use fp32")
    if precision == "fp32" or (precision is None and (device.type != "cuda" or not supported)):
        return None
    return torch.bfloat16


def has_bf16_instructions(device: torch.device, cpuinfo: Path = CPUINFO) -> bool:
    """Whether the device is a CPU that, as Linux says, multiplies in bf16."""
    flags = cpuinfo.read_text().split() if device.type == "cpu" and cpuinfo.is_file() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def in_precision(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    """Context: compute in this precision; None: in fp32. Casts are not cached, as a CUDA graph must repeat them."""
    return torch.autocast(device.type, dtype, enabled=dtype is not None, cache_enabled=False)


def free_bytes(device: torch.device) -> int:
    """Free memory of the device; on a CPU, within the limits of the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    if not MEMINFO.is_file():
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
        return pages // 2
    lines = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024  # including caches that can be dropped
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    return free
