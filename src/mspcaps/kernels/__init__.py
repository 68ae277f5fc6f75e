"""Hand-written Triton kernels for the parts of a training step that compilers leave as many small passes.

Every kernel has a plain PyTorch twin elsewhere in the library, which stays the definition. Triton is imported only when
a kernel runs, so the package imports everywhere; `TRITON` says whether there is one.
"""

import importlib.util

from torch import nn

TRITON = importlib.util.find_spec("triton") is not None
EPS = 1e-12  # inside the square root of a capsule's length: at zero its gradient would be infinite


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether to call the module is to run the forward pass of `kind` and nothing else: it has no hooks (pruning is
    one) and was not parametrised, adapted or replaced. Others must be called, however fast a way around them is."""
    return type(module) is kind and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def power_of_two(n: int) -> int:
    """The smallest that is not below n: Triton's tiles have such sides."""
    return 1 << (n - 1).bit_length()
