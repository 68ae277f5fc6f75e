"""`fuse(model)`: what a training step on a GPU runs instead of the model.

The model remains the definition. Its twin shares all modules, parameters and buffers, except for parts that we have
kernels for and that are unmodified (no hook, no pruning, no frozen statistics): there our kernels compute the same.
"""

import copy
import importlib.util
from collections.abc import Callable, Sequence
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import CrossAgreementRouting, PatchifyCaps, cast_votes
from mspcaps.capsules.patchify import patch_averages
from mspcaps.capsules.routing.cross_agreement import group_fine
from mspcaps.kernels import depthwise, embedding
from mspcaps.kernels.backbone import MAX_PATCH_CHANNELS, backbone, supported
from mspcaps.models import Model
from mspcaps.models.controls import LinearHead, PatchAverages
from mspcaps.models.layers import BatchNorm, ConvBN
from mspcaps.models.mspcaps import MSRB, MSPCaps, MultiScalePatchify, ResidualBlock

STEPS = ("forward_features", "forward_maps", "make_capsules")  # from an image to capsules
TRITON = importlib.util.find_spec("triton") is not None


def fuse(model: Model) -> Model:
    """A twin of a model in training mode with the same parameters and buffers, or the model itself if there is nothing
    to gain. Both stay valid: a step or a loaded state that changes one changes the other."""
    if TRITON and isinstance(model, MSPCaps | LinearHead) and parts_are_plain(model):
        patchify = model.patchify
        fused: dict[str, nn.Module] = {"backbone": FusedBackbone(model.backbone, patchify.patch)}
        fused["patchify"] = FusedPatchify(patchify) if isinstance(patchify, MultiScalePatchify) else nn.Identity()
        if isinstance(model, MSPCaps):
            fused["routing"] = replace_modules(model.routing, joint_votes)
        return with_children(model, fused)
    return replace_modules(model, faster_conv)


M = TypeVar("M", bound=nn.Module)


def with_children(module: M, children: dict[str, nn.Module]) -> M:
    """A copy that shares everything with the module except these children."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **children}
    return twin


def replace_modules(module: M, replace: Callable[[nn.Module], nn.Module]) -> M:
    """The module with `replace` applied to everything inside it; only modules that hold something new are copied."""
    children = {name: child for name, child in module._modules.items() if child is not None}
    new = {name: replace_modules(replace(child), replace) for name, child in children.items()}
    changed = {name: child for name, child in new.items() if child is not children[name]}
    return with_children(module, changed) if changed else module


def is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Whether calling the module runs the forward pass of `kind` and nothing else: it has no hooks (pruning is one) and
    was not parametrised, adapted or replaced. Any other module must be called, not bypassed."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks) and "forward" not in vars(module)


def keeps_size(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is a plain convolution with a square kernel whose padding keeps the size of a map at stride 1."""
    if not is_plain(conv, nn.Conv2d):
        return False
    k = conv.kernel_size[0]
    padded = conv.padding == (k // 2, k // 2) and conv.padding_mode == "zeros"
    return k % 2 == 1 and conv.kernel_size == (k, k) and padded and conv.dilation == (1, 1)


def parts_are_plain(model: MSPCaps | LinearHead) -> bool:
    """Whether every module that the operators bypass is what they compute: not changed, hooked or frozen."""
    module, patchify = model.backbone, model.patchify
    kind, family = type(model), MSPCaps if isinstance(model, MSPCaps) else LinearHead
    if any(getattr(kind, step, None) is not getattr(family, step, None) for step in STEPS):
        return False
    if not is_plain(module, MSRB) or not (is_plain(patchify, MultiScalePatchify) or is_plain(patchify, PatchAverages)):
        return False
    capsules: list[PatchifyCaps] = list(patchify.children())  # type: ignore[arg-type]
    if module.grad_checkpointing or not all(is_plain(block, ResidualBlock) for block in module.blocks):
        return False
    layers = conv_layers(module)
    if not all(is_plain(layer, ConvBN) for layer in layers) or not all(is_plain(u, PatchifyCaps) for u in capsules):
        return False
    convs, norms = [layer.conv for layer in layers], [layer.bn for layer in layers]
    eps, momentum = norms[0].eps, norms[0].momentum
    return (
        all(keeps_size(c) and c.kernel_size == (3, 3) and c.groups == 1 and c.bias is None for c in convs)
        and all(is_plain(bn, BatchNorm) and bn.training for bn in norms)
        and momentum is not None
        and all(bn.eps == eps and bn.momentum == momentum for bn in norms)
        and all(is_plain(layer.project, nn.Linear) and is_plain(layer.norm, nn.LayerNorm) for layer in capsules)
        and all(layer.norm.eps == capsules[0].norm.eps for layer in capsules)
        and all(b is not None for u in capsules for b in (u.project.bias, u.norm.weight, u.norm.bias))
    )


def conv_layers(module: MSRB) -> list[ConvBN]:
    """All convolutions of the backbone in order."""
    return [layer for block in module.blocks for layer in (block.first, *block.rest)]  # type: ignore[misc]


class FusedBackbone(nn.Module):
    """The backbone and the pooling of PatchifyCaps as one operator with a hand-written backward pass: normalised images
    [b, c, h, w] -> patch averages [b, n_i, c_i] of every scale in use, finest first."""

    def __init__(self, plain: MSRB, patch: int) -> None:
        super().__init__()
        self.plain, self.patch = plain, patch
        lasts = [len(block.rest) for block in plain.blocks]  # type: ignore[arg-type]
        self.shortcuts = [i > 0 for last in lasts for i in range(last + 1)]
        self.pools = [i == last and n in plain.scales for n, last in enumerate(lasts) for i in range(last + 1)]

    def forward(self, x: Tensor) -> list[Tensor]:
        layers = conv_layers(self.plain)
        convs, norms = [layer.conv for layer in layers], [layer.bn for layer in layers]
        strides = [conv.stride[0] for conv in convs]
        if not supported(x, [conv.out_channels for conv in convs], strides, self.pools, self.patch):
            return [patch_averages(f, self.patch) for f in self.plain(x)]
        return backbone(
            x.to(convs[0].weight.dtype),
            [conv.weight for conv in convs],
            [bn.weight for bn in norms],
            [bn.bias for bn in norms],
            [bn.running_mean for bn in norms],  # type: ignore[misc]
            [bn.running_var for bn in norms],  # type: ignore[misc]
            strides=strides,
            shortcuts=self.shortcuts,
            pools=self.pools,
            patch=self.patch,
            momentum=norms[0].momentum or 0.0,
            eps=norms[0].eps,
        )


class FusedPatchify(nn.Module):
    """PatchifyCaps after its pooling, for all scales: averages [b, n_i, c_i] -> primary capsules [b, n_i, d_i]."""

    def __init__(self, plain: MultiScalePatchify) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, averages: Sequence[Tensor]) -> list[Tensor]:
        layers: list[PatchifyCaps] = list(self.plain)  # type: ignore[arg-type]
        positions = [layer.position for layer in layers if layer.position is not None]
        dims = [len(layer.project.weight) for layer in layers]
        if len(positions) < len(layers) or not embedding.supported(averages, dims):
            return [layer.embed(u) for layer, u in zip(layers, averages, strict=True)]
        return embedding.embed(
            averages,
            [layer.project.weight for layer in layers],
            [layer.project.bias for layer in layers],
            positions,
            [layer.norm.weight for layer in layers],
            [layer.norm.bias for layer in layers],
            layers[0].norm.eps,
        )


def faster_conv(conv: nn.Module) -> nn.Module:
    """A twin for the three kinds of convolution that are disproportionately slow in cuDNN: those with groups of several
    channels, depthwise ones, and 3x3 ones on an image."""
    if is_grouped(conv):
        return GroupedConv(conv).train(conv.training)
    if not keeps_size(conv) or conv.stride != (1, 1):
        return conv
    if TRITON and conv.groups == conv.in_channels == conv.out_channels > 1 and conv.bias is None:
        return DepthwiseConv(conv).train(conv.training)
    if conv.kernel_size == (3, 3) and conv.groups == 1 and conv.in_channels <= MAX_PATCH_CHANNELS:
        return PatchConv(conv).train(conv.training)
    return conv


def is_grouped(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is a plain convolution with groups of several channels."""
    if not is_plain(conv, nn.Conv2d) or not 1 < conv.groups < conv.in_channels:
        return False
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str) and conv.dilation == (1, 1)


class GroupedConv(nn.Module):
    """A convolution in groups as one batched product with image patches; cuDNN computes one group after the other."""

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        assert not isinstance(plain.padding, str)
        self.groups, self.stride, self.padding = plain.groups, plain.stride, plain.padding

    def forward(self, x: Tensor) -> Tensor:
        g, (rows, columns) = self.groups, self.weight.shape[2:]
        (top, left), (down, across) = self.padding, self.stride
        x = x.to(self.weight.dtype).permute(0, 2, 3, 1).unflatten(-1, (g, -1))  # [b, h, w, g, c]
        x = F.pad(x, (0, 0, 0, 0, left, left, top, top))
        b, h, w = len(x), (x.shape[1] - rows) // down + 1, (x.shape[2] - columns) // across + 1
        # Slices and not unfold, whose gradient a compiler adds up element by element.
        slices = [
            x[:, i : i + (h - 1) * down + 1 : down, j : j + (w - 1) * across + 1 : across]
            for i in range(rows)
            for j in range(columns)
        ]
        patches = torch.stack(slices, 4).permute(3, 0, 1, 2, 4, 5).reshape(g, b * h * w, -1)  # [g, b h' w', k k c]
        weight = self.weight.unflatten(0, (g, -1)).permute(0, 3, 4, 2, 1).flatten(1, 3)  # [g, k k c, out]
        y = torch.bmm(patches, weight).view(g, b, h, w, -1).permute(1, 0, 4, 2, 3).flatten(1, 2)  # [b, g out, h', w']
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


class DepthwiseConv(nn.Module):
    """A depthwise convolution, [b, c, h, w] -> the same shape."""

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.weight = plain.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if not depthwise.supported(x):
            return F.conv2d(x, self.weight, padding=self.weight.shape[2] // 2, groups=len(self.weight))
        filters = self.weight.flatten(1).t()  # [k k, c]
        y = depthwise.depthwise(x.permute(0, 2, 3, 1), filters, False)  # [b, h, w, c]
        return y.permute(0, 3, 1, 2)


class PatchConv(nn.Module):
    """A 3x3 convolution with few input channels as a product with image patches."""

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        patches = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)  # [b, c, h, w, 3, 3]
        patches = patches.permute(0, 2, 3, 4, 5, 1).reshape(b, h * w, 9 * c)
        weight = self.weight.permute(2, 3, 1, 0).reshape(9 * c, -1)
        spare = -9 * c % 8  # tensor cores take inner sizes in multiples of 8
        patches, weight = F.pad(patches, (0, spare)), F.pad(weight, (0, 0, 0, spare))
        # One product per image: the weight gradient is then split over the batch instead of one long thin product.
        y = torch.bmm(patches, weight.expand(b, -1, -1))  # [b, h w, out]
        y = y.view(b, h, w, -1).permute(0, 3, 1, 2)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


def joint_votes(routing: nn.Module) -> nn.Module:
    return JointVotes(routing) if is_plain(routing, CrossAgreementRouting) and routing.w1 is None else routing


class JointVotes(CrossAgreementRouting):
    """Fine and coarse capsules that share their weights vote in one product instead of two."""

    def __init__(self, plain: CrossAgreementRouting) -> None:
        vars(self).update(vars(plain))  # shares everything with it

    def votes(self, u1: Tensor, u2: Tensor) -> tuple[Tensor, Tensor]:
        u1 = group_fine(u1, self.fine, self.coarse).transpose(0, 1)  # [k, b, m, d]
        votes = cast_votes(torch.cat([u1, u2.transpose(0, 1).unsqueeze(2)], dim=2), self.w2)  # [k, b, m + 1, j, e]
        return votes[:, :, :-1], votes[:, :, -1]
