"""AdamW, Adam and SGD on flat vectors, Muon for some of the parameters if the recipe asks for it, and their schedules.

All parameters of one precision share a buffer: a step is one pass over memory instead of one small kernel per tensor,
and the gradients of all processes are averaged in one message. Master weights are fp32. If the model computes in lower
precision, its parameters of two or more dimensions are working copies, written by the same pass.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.models import Model
from mspcaps.training.muon import Shape, muon, muon_shapes
from mspcaps.training.recipe import Recipe

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # PyTorch's defaults
Rule: TypeAlias = Callable[..., None]


class FlatGroup:
    """The parameters that share working precision, weight decay and update rule: their master weights and optimizer
    state as flat fp32 vectors. `shapes` are those of Muon's matrices."""

    def __init__(
        self, params: dict[str, nn.Parameter], dtype: torch.dtype, weight_decay: float, rule: str,
        shapes: tuple[Shape, ...] = (),
    ) -> None:  # fmt: skip
        self.params, self.weight_decay, self.shapes = params, weight_decay, shapes
        self.rule, self.slots = RULES[rule]
        self.master = torch.cat([in_memory_order(p.detach(), p).reshape(-1).float() for p in params.values()])
        self.state = [torch.zeros_like(self.master) for _ in self.slots]
        self.work = self.master if dtype == torch.float32 else self.master.to(dtype)
        for name, piece in self.pieces(self.work).items():
            params[name].data = piece

    def pieces(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector by parameter name, each with the shape and memory layout of its parameter."""
        pieces = flat.split([p.numel() for p in self.params.values()])
        return {
            name: piece.as_strided(p.shape, p.stride(), piece.storage_offset())
            for (name, p), piece in zip(self.params.items(), pieces, strict=True)
        }


class FlatOptimizer:
    """The optimizer of a recipe. The model says which parameters have no weight decay and which stay in fp32.

    The learning rate and the step count are tensors on the device, where a CUDA graph reads them.
    """

    def __init__(self, model: Model, recipe: Recipe, dtype: torch.dtype = torch.float32) -> None:
        self.recipe, self.update = recipe, update
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        undecayed, fp32 = model.no_weight_decay(), model.fp32_parameters()
        if unknown := (undecayed | fp32) - {name for name, _ in model.named_parameters()}:
            raise MspcapsError(f"the model exempts {min(unknown)} from decay or bf16, but has no such parameter")
        if not recipe.decay_vectors:
            undecayed = undecayed | {name for name, p in named.items() if p.ndim < 2}
        shapes = muon_shapes(model) if recipe.muon_lr else {}
        groups: dict[tuple[torch.dtype, float, str], dict[str, nn.Parameter]] = {}
        for name, p in sorted(named.items(), key=lambda item: item[1].ndim < 2):  # working copies first
            kind = torch.float32 if p.ndim < 2 or name in fp32 else dtype
            decay = 0.0 if name in undecayed else recipe.weight_decay
            groups.setdefault((kind, decay, "muon" if name in shapes else recipe.optimizer), {})[name] = p
        self.groups = [
            FlatGroup(params, kind, decay, rule, tuple(shapes[name] for name in params) if rule == "muon" else ())
            for (kind, decay, rule), params in groups.items()
        ]
        device = self.groups[0].master.device
        self.lr = torch.zeros((), device=device)
        self.steps = torch.zeros((), device=device)

    @property
    def params(self) -> list[nn.Parameter]:
        return [p for group in self.groups for p in group.params.values()]

    def flat_gradients(self, gradients: Iterable[Tensor | None]) -> list[Tensor]:
        """Gradients in the order of `params` -> one flat vector per group."""
        rest = iter(gradients)
        return [
            torch.cat([flat_gradient(*named, next(rest)) for named in group.params.items()]) for group in self.groups
        ]

    def step(self, flat_gradients: list[Tensor]) -> None:
        """One step, after clipping the global norm of the gradients if the recipe says so."""
        if self.recipe.clip_grad:
            # A sum of squares, because vector_norm loses three digits on millions of numbers on a CPU.
            norm = torch.stack([g.float().square().sum() for g in flat_gradients]).sum().sqrt()
            scale = (self.recipe.clip_grad / (norm + 1e-6)).clamp(max=1.0)
            flat_gradients = [g.float() * scale for g in flat_gradients]
        self.steps += 1
        momentum, nesterov, muon_lr = self.recipe.momentum, self.recipe.nesterov, self.recipe.muon_lr / self.recipe.lr
        for group, g in zip(self.groups, flat_gradients, strict=True):
            lr = self.lr * muon_lr if group.shapes else self.lr  # Muon's follows the same schedule
            settings = (lr, self.steps, group.weight_decay, momentum, nesterov, group.shapes, group.work.dtype)
            self.update(group.rule, group.master, g, group.state, group.work, *settings)

    def masters(self) -> dict[str, Tensor]:
        """The fp32 weights by parameter name, as views."""
        return {name: piece for group in self.groups for name, piece in group.pieces(group.master).items()}

    def tensors(self) -> dict[str, Tensor]:
        """Master weights and state by parameter name, as views, and the step count: what a checkpoint needs."""
        state = {"optimizer.steps": self.steps}
        for group in self.groups:
            for kind, flat in zip(("master", *group.slots), (group.master, *group.state), strict=True):
                state |= {f"{kind}.{name}": piece for name, piece in group.pieces(flat).items()}
        return state

    def refresh(self) -> None:
        """Update the working copies after the master weights were loaded."""
        for group in self.groups:
            if group.work is not group.master:
                group.work.copy_(group.master)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """The rate in epoch 0, 1, ...: from warmup_start * lr to lr over the warm-up, then as the schedule says. It is
    constant within an epoch."""
    if epoch < recipe.warmup:
        return recipe.lr * (recipe.warmup_start + (1 - recipe.warmup_start) * epoch / recipe.warmup)
    if recipe.schedule == "cosine":  # reaches min_lr in the epoch after the last
        progress = (epoch - recipe.warmup) / (recipe.epochs - recipe.warmup)
        return recipe.min_lr + (recipe.lr - recipe.min_lr) * (1 + math.cos(math.pi * progress)) / 2
    if recipe.schedule == "constant":
        return recipe.lr
    # exponential counts epochs from the end of the warm-up, steps from the start of the run
    steps = bisect_right(recipe.lr_steps, epoch) if recipe.schedule == "steps" else epoch - recipe.warmup
    return max(recipe.lr * recipe.lr_gamma**steps, min(recipe.lr, recipe.min_lr))


def flat_gradient(name: str, p: nn.Parameter, g: Tensor | None) -> Tensor:
    """Refuse a missing gradient: the parameter would silently stay as it is, or decay."""
    if g is None:
        raise MspcapsError(
            f"the loss does not depend on {name}: leave it out of the model or freeze it with requires_grad_(False)"
        )
    return in_memory_order(g, p).reshape(-1)


def update(rule: Rule, p: Tensor, g: Tensor, state: list[Tensor], work: Tensor, *settings: Any) -> None:
    """One step of a rule, in place on flat vectors; `work` receives the weights in working precision."""
    rule(p, g.float(), state, *settings)
    if work is not p:
        work.copy_(p)


# Every rule takes weights, gradient, state, learning rate, step count, weight decay, momentum, nesterov, and the shapes
# and precision of Muon's matrices.


def adamw(
    p: Tensor, g: Tensor, state: list[Tensor], lr: Tensor, steps: Tensor, weight_decay: float, *_: object
) -> None:
    p.mul_(1 - lr * weight_decay)
    p.sub_(adam_direction(g, state, lr, steps))


def adam(p: Tensor, g: Tensor, state: list[Tensor], lr: Tensor, steps: Tensor, weight_decay: float, *_: object) -> None:
    """Weight decay is part of the gradient."""
    p.sub_(adam_direction(g.add(p, alpha=weight_decay), state, lr, steps))


def adam_direction(g: Tensor, state: list[Tensor], lr: Tensor, steps: Tensor) -> Tensor:
    m, v = state
    m.mul_(BETA1).add_(g, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    correction1 = 1 - torch.exp(steps * math.log(BETA1))
    correction2 = 1 - torch.exp(steps * math.log(BETA2))
    return lr / correction1 * m / ((v / correction2).sqrt() + EPS)


def sgd(
    p: Tensor, g: Tensor, state: list[Tensor], lr: Tensor, steps: Tensor, weight_decay: float, momentum: float,
    nesterov: bool, *_: object,
) -> None:  # fmt: skip
    """With PyTorch's momentum: the learning rate is not part of the velocity."""
    (velocity,) = state
    g = g.add(p, alpha=weight_decay)
    velocity.mul_(momentum).add_(g)
    p.addcmul_(g.add(velocity, alpha=momentum) if nesterov else velocity, lr, value=-1)


RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {  # name -> the rule, and the names of its state
    "adamw": (adamw, ("m", "v")), "adam": (adam, ("m", "v")), "sgd": (sgd, ("velocity",)), "muon": (muon, ("velocity",))
}  # fmt: skip


def is_channels_last(t: Tensor) -> bool:
    return t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


def in_memory_order(t: Tensor, p: Tensor) -> Tensor:
    """t with its axes in the order of p's strides: flattening it copies nothing if both have the same layout."""
    return t.permute(0, 2, 3, 1) if is_channels_last(p) else t
