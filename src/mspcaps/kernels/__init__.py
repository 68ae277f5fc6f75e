"""Optional accelerators: Triton kernels for the parts of a training step that compilers leave as many small passes.

`fuse(model)` is the only way in, and only the training step takes it. Triton is imported when a kernel runs, so
the package imports everywhere.
"""

from mspcaps.kernels.fused import fuse

__all__ = ["fuse"]
