"""AdamW on one flat vector.

All parameters of a precision live in one buffer, so that a step is one pass over memory instead of one small kernel per
tensor, and the gradients of all processes are averaged in one message. Master weights are fp32. Where the model
computes in lower precision its parameters of two or more dimensions are copies that the same pass writes.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # PyTorch's defaults


class FlatGroup:
    """The parameters of one working precision: master weights and moments as flat fp32 vectors."""

    def __init__(self, params: list[nn.Parameter], dtype: torch.dtype) -> None:
        self.params = params
        self.master = torch.cat([in_memory_order(p.detach(), p).reshape(-1).float() for p in params])
        self.m, self.v = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.work = self.master if dtype == torch.float32 else self.master.to(dtype)
        for p, piece in zip(params, self.pieces(self.work), strict=True):
            p.data = piece

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector, one with the shape and memory layout of each parameter."""
        pieces = flat.split([p.numel() for p in self.params])
        return [
            piece.view(p.shape[0], *p.shape[2:], p.shape[1]).permute(0, 3, 1, 2)
            if is_channels_last(p)
            else piece.view(p.shape)
            for p, piece in zip(self.params, pieces, strict=True)
        ]


class FlatAdamW:
    """AdamW with decoupled decay on every parameter, as torch.optim.AdamW does by default.

    The learning rate and the number of steps taken are tensors on the device: a captured graph reads them.
    """

    def __init__(self, model: nn.Module, weight_decay: float, matrix_dtype: torch.dtype = torch.float32) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = {id(p): name for name, p in named}
        self.weight_decay = weight_decay
        matrices = [p for _, p in named if p.ndim >= 2]
        vectors = [p for _, p in named if p.ndim < 2]
        if matrix_dtype == torch.float32:
            self.groups = [FlatGroup(matrices + vectors, torch.float32)]
        else:
            self.groups = [FlatGroup(matrices, matrix_dtype), FlatGroup(vectors, torch.float32)]
        device = self.groups[0].master.device
        self.lr = torch.zeros((), device=device)
        self.steps = torch.zeros((), device=device)
        self.update = adamw_update

    @property
    def params(self) -> list[nn.Parameter]:
        return [p for group in self.groups for p in group.params]

    def flat_gradients(self, gradients: Iterable[Tensor | None]) -> list[Tensor]:
        """Gradients in the order of `params` -> one flat vector per group."""
        grads, flat = self.all_there(gradients), []
        for group in self.groups:
            mine, grads = grads[: len(group.params)], grads[len(group.params) :]
            flat.append(torch.cat([in_memory_order(g, p).reshape(-1) for g, p in zip(mine, group.params, strict=True)]))
        return flat

    def all_there(self, gradients: Iterable[Tensor | None]) -> list[Tensor]:
        """A parameter without a gradient would stay as it is, or decay, and nobody would know."""
        found = []
        for p, g in zip(self.params, gradients, strict=True):
            if g is None:
                raise MspcapsError(
                    f"the loss does not depend on {self.names[id(p)]}: leave it out of the model, or freeze it with "
                    "requires_grad_(False)"
                )
            found.append(g)
        return found

    def step(self, flat_gradients: list[Tensor]) -> None:
        self.steps += 1
        for group, g in zip(self.groups, flat_gradients, strict=True):
            flat = (group.master, g, group.m, group.v, group.work)
            self.update(*flat, self.lr, self.steps, self.weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        """Master weights and moments by parameter name, as views, and the step count: all that a checkpoint needs."""
        state = {"optimizer.steps": self.steps}
        for group in self.groups:
            for kind, flat in (("master", group.master), ("m", group.m), ("v", group.v)):
                for p, piece in zip(group.params, group.pieces(flat), strict=True):
                    state[f"{kind}.{self.names[id(p)]}"] = piece
        return state

    def refresh(self) -> None:
        """After the master weights were loaded: bring the working copies up to date."""
        for group in self.groups:
            if group.work is not group.master:
                group.work.copy_(group.master)


def adamw_update(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, work: Tensor, lr: Tensor, steps: Tensor, weight_decay: float
) -> None:
    """One step in place on flat vectors; `work` receives the weights in working precision."""
    g = g.float()
    m.mul_(BETA1).add_(g, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    correction1 = 1 - torch.exp(steps * math.log(BETA1))
    correction2 = 1 - torch.exp(steps * math.log(BETA2))
    p.mul_(1 - lr * weight_decay)
    p.sub_(lr / correction1 * m / ((v / correction2).sqrt() + EPS))
    if work is not p:
        work.copy_(p)


def is_channels_last(t: Tensor) -> bool:
    return t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


def in_memory_order(t: Tensor, p: Tensor) -> Tensor:
    """t with its axes in the order of p's strides: flattening it copies nothing when both are laid out alike."""
    return t.permute(0, 2, 3, 1) if is_channels_last(p) else t
