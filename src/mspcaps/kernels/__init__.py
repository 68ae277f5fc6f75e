"""Hand-written Triton kernels for the parts of a training step that compilers leave as many small passes.

Every kernel has a plain PyTorch twin elsewhere in the library, which stays the definition. Triton is imported only when
a kernel runs, so the package imports everywhere; `available` says whether kernels can run on a device.
"""

import importlib.util
import os

import torch

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def available(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device (on a CPU: only in Triton's interpreter, for tests)."""
    return TRITON and (device.type == "cuda" or (device.type == "cpu" and INTERPRETED))
