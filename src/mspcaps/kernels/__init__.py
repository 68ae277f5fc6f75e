"""Hand-written Triton kernels for the parts of a training step that compilers leave as many small passes.

`kernels.fuse.fuse(model)` is the way in, and only the training step takes it. Triton is imported only when a kernel
runs, so the package imports everywhere; `TRITON` says whether there is one.
"""

import importlib.util

TRITON = importlib.util.find_spec("triton") is not None


def power_of_two(n: int) -> int:
    """The smallest that is not below n: Triton's tiles have such sides."""
    return 1 << (n - 1).bit_length()
