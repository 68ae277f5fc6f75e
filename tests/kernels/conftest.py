"""Kernels are tested on the GPU if there is one, otherwise in Triton's interpreter on the CPU."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton import knobs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not knobs.runtime.interpret:
        pytest.skip("neither a GPU nor Triton's interpreter")
    return device


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default cuDNN rounds fp32 inputs to TF32, which cannot be compared to five digits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def seed() -> None:
    """A rectified value that happens to be zero would fail any tolerance: rare, but possible."""
    torch.manual_seed(0)
