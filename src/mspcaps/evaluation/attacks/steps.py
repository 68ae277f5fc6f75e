"""The steps of projected gradient ascent as a pure function, for attacks and for adversarial training."""

from collections.abc import Callable

import torch
from torch import Tensor

from mspcaps.errors import MspcapsError

LossFunction = Callable[[Tensor], Tensor]  # images [b, c, h, w] -> scalar to ascend


def pgd_steps(loss_fn: LossFunction, x: Tensor, start: Tensor, eps: float, step_size: float, steps: int) -> Tensor:
    """`steps` steps of step_size along the sign of the gradient, from `start`, within eps of x and within [0, 1].

    Images [b, c, h, w] -> images without a graph. The loss may be summed or averaged over the images: the sign is the
    same. Nothing here waits for the device or depends on values, so a training step that calls it can be captured as a
    CUDA graph. Parameters get no gradients; the caller decides whether the model is in eval mode.
    """
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    adversarial = start.detach()
    for _ in range(steps):
        slope = gradient(loss_fn, adversarial)
        adversarial = (adversarial + step_size * slope.sign()).clamp(low, high)
    return adversarial


def gradient(loss_fn: LossFunction, x: Tensor) -> Tensor:
    """The gradient of the loss with respect to the pixels; parameters get none."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = loss_fn(x)
        (slope,) = torch.autograd.grad(loss, x, allow_unused=True) if loss.requires_grad else (None,)
    if slope is None:
        raise MspcapsError(
            "the model's scores have no gradient in the pixels, because it detaches or quantises them or runs outside "
            "PyTorch: attack it with square"
        )
    return slope
