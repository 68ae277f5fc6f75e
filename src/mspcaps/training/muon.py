"""Muon (Jordan et al., 2024): momentum made orthogonal, matrix by matrix, before each step.

A step of SGD moves a layer mostly along the few directions in which its gradient is large. Muon steps along the
orthogonal matrix nearest to the momentum instead, which moves all directions equally far. It is for layers that
multiply by a matrix; all other parameters stay with the recipe's optimizer.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.models import Model

# A x + B x^3 + C x^5 moves all singular values in (0, 1] towards 1. These coefficients trade accuracy for speed: after
# five rounds the values lie between about 0.7 and 1.2.
A, B, C = 3.4445, -4.7750, 2.0315
ROUNDS = 5
EPS = 1e-7

Shape: TypeAlias = tuple[int, int, int]  # of one parameter: how many matrices it holds, their rows and columns


def muon_shapes(model: Model) -> dict[str, Shape]:
    """The parameters for Muon, by name: weights of convolutions and linear layers outside the classifier.

    A convolution multiplies every patch by a matrix [out, in * height * width], a grouped one by a matrix per group. A
    depthwise one has only a vector per channel, so it is not among them.
    """
    head = {id(p) for p in model.get_classifier().parameters()}
    shapes = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and id(module.weight) not in head and module.weight.requires_grad:
            groups = module.groups if isinstance(module, nn.Conv2d) else 1
            rows, columns = len(module.weight) // groups, module.weight[0].numel()
            if min(rows, columns) > 1:
                shapes[f"{path}.weight"] = (groups, rows, columns)
    if not shapes:
        raise MspcapsError(
            f"muon_lr is for convolutions and linear layers, but {model.config['name']} has none outside its "
            "classifier: leave muon_lr at 0"
        )
    return shapes


def orthogonalize(x: Tensor) -> Tensor:
    """Matrices [n, r, c] -> the same with all singular values near 1, by Newton-Schulz iteration."""
    if x.shape[1] > x.shape[2]:
        return orthogonalize(x.mT).mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + EPS)  # no singular value is above 1
    for _ in range(ROUNDS):
        square = x @ x.mT  # [n, r, r]
        x = A * x + (B * square + C * square @ square) @ x
    return x


def muon_direction(flat: Tensor, shapes: tuple[Shape, ...], dtype: torch.dtype) -> Tensor:
    """The flat momentum of a group's parameters, in the order of their shapes -> the direction of the step.

    Matrices of one shape are computed together. The order of columns does not matter, so channels may come last in
    memory. Tall matrices step further, by sqrt(rows / columns), so that all layers' outputs change equally.
    """
    pieces = flat.split([math.prod(shape) for shape in shapes])
    directions = [*pieces]
    for rows, columns in dict.fromkeys(shape[1:] for shape in shapes):
        members = [i for i, shape in enumerate(shapes) if shape[1:] == (rows, columns)]
        stacked = torch.cat([pieces[i].view(shapes[i]) for i in members])
        stacked = orthogonalize(stacked.to(dtype)).float() * max(1.0, rows / columns) ** 0.5
        for i, piece in zip(members, stacked.split([shapes[i][0] for i in members]), strict=True):
            directions[i] = piece.reshape(-1)
    return torch.cat(directions)


def muon(
    p: Tensor, g: Tensor, state: list[Tensor], lr: Tensor, steps: Tensor, weight_decay: float, momentum: float,
    nesterov: bool, shapes: tuple[Shape, ...], dtype: torch.dtype,
) -> None:  # fmt: skip
    """One step, in place on flat vectors, always with Nesterov momentum and decoupled weight decay; products are
    computed in the working precision."""
    (velocity,) = state
    velocity.mul_(momentum).add_(g)
    direction = muon_direction(g.add(velocity, alpha=momentum), shapes, dtype)
    p.mul_(1 - lr * weight_decay)
    p.sub_(lr * direction)
