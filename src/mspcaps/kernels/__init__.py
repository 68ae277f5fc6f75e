"""Optional accelerators: Triton kernels for those parts of a training step that a compiler leaves as many small passes.

`fuse(model)` is the only entry point, and only the training step uses it. Triton is imported when a kernel runs, so the
package can be imported everywhere.
"""

from mspcaps.kernels.fused import fuse

__all__ = ["fuse"]
