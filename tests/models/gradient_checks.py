"""A float64 model against a reference written with its parameters."""

import torch
from torch import Tensor

from mspcaps.models import Model


def assert_same_gradients(model: Model, x: Tensor, y: Tensor, expected: Tensor) -> None:
    """The training loss of the model equals the reference's, and so do the gradients of every parameter."""
    loss, (names, params) = model.training_loss(x, y, model.criterion), zip(*model.named_parameters(), strict=True)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(loss, params)
    references = torch.autograd.grad(expected, params, retain_graph=True)
    for name, gradient, reference in zip(names, gradients, references, strict=True):
        error = (gradient - reference).abs().max()
        assert error <= 1e-12 + 1e-8 * reference.abs().max(), f"{name}: {error}"
