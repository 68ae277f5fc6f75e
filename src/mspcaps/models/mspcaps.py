"""MSPCaps: Multi-Scale Patchify Capsule Network with Cross-Agreement Routing.

Paper: Hu, Han, Sun, Ren, "MSPCaps: A Multi-Scale Patchify Capsule Network with Cross-Agreement Routing for Visual
Recognition", https://github.com/abdn-hyd/MSPCaps.
Differs from it: nothing known, though most of its ablations come out higher here than printed (docs/results.md). Where
it is silent, the reading is the one that reproduces every parameter count it prints; docs/paper.md lists what no count
decides, such as the capsules of the _dr models and of mspcaps_l_shared. Vote weights start from N(0, 1 / d_in),
positions from N(0, 1), everything else as PyTorch does.
Parameters (3 x 32 x 32, 10 classes): mspcaps_t 344,320; mspcaps_l 10,932,944.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from mspcaps.capsules import CrossAgreementRouting, DynamicRouting, PatchifyCaps, RoutingState, length, margin_loss
from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.grouping import middle_grids
from mspcaps.errors import MspcapsError
from mspcaps.models.fused import FusedBackbone
from mspcaps.models.layers import ConvBN, Normalize
from mspcaps.models.registry import Model, register_model


@dataclass(frozen=True)
class Config:
    """The paper's hyper-parameters, Table "Hyperparameters of our model variants"."""

    widths: tuple[int, ...]  # C_1, C_2, C_3
    depth: int  # N, convolutions per residual block
    dims: tuple[int, ...]  # d_1, d_2, d_3
    d_mid: int
    d_out: int
    patch: int
    shared: bool
    scales: tuple[int, ...] = (0, 1, 2)  # which feature maps become capsules, finest first


TINY = Config(widths=(32, 64, 128), depth=2, dims=(8, 8, 16), d_mid=16, d_out=32, patch=4, shared=True)
LARGE = Config(widths=(128, 256, 512), depth=3, dims=(16, 32, 64), d_mid=64, d_out=128, patch=4, shared=False)


class ResidualBlock(nn.Module):
    """One 3x3 convolution that sets width and stride, then depth - 1 of them with identity shortcuts."""

    def __init__(self, in_chans: int, width: int, depth: int, stride: int) -> None:
        super().__init__()
        self.first = ConvBN(in_chans, width, stride)
        self.rest = nn.ModuleList(ConvBN(width, width) for _ in range(depth - 1))

    def layers(self) -> list[ConvBN]:
        return [self.first, *self.rest]

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for conv in self.rest:
            x = F.relu(conv(x) + x)
        return x


class MSRB(FusedBackbone):
    """The multi-scale backbone: normalisation inside, one residual block per scale, a feature map from each."""

    block = ResidualBlock

    def __init__(
        self, config: Config, in_chans: int, img_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.scales, self.patch = config.scales, config.patch
        self.normalize = Normalize(mean, std, img_size)  # of other sizes capsules would meet the wrong positions
        chans = (in_chans, *config.widths)
        self.blocks = nn.ModuleList(
            ResidualBlock(chans[i], chans[i + 1], config.depth, stride=1 if i == 0 else 2)
            for i in range(config.scales[-1] + 1)
        )
        # Coarsest first: it needs the largest image, so a refusal names a size that all the scales accept.
        self.grids = [capsule_grid(img_size, i, config.patch) for i in reversed(config.scales)][::-1]

    def forward_features(self, x: Tensor) -> list[Tensor]:
        """[b, c, h, w] in [0, 1] -> the feature maps of all blocks, finest first."""
        maps, x = [], self.normalize(x)
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return maps


class MSPCaps(MSRB, Model):
    """Backbone -> PatchifyCaps per scale -> routing from fine to coarse -> class capsules [b, num_classes, d_out]."""

    loss = staticmethod(margin_loss)  # what it is trained with, on scores and labels
    routing_block: type[CrossAgreementRouting] = CrossAgreementRouting

    def __init__(
        self,
        config: Config,
        num_classes: int,
        in_chans: int,
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(config, in_chans, img_size, mean, std)
        self.patchify = nn.ModuleList(
            PatchifyCaps(config.widths[i], config.dims[i], grid, config.patch)
            for i, grid in zip(config.scales, self.grids, strict=True)
        )
        self.build_routing(config, num_classes)

    def build_routing(self, config: Config, num_classes: int) -> None:
        grids, dims, shared = self.grids, [config.dims[i] for i in config.scales], config.shared
        if len(grids) == 3:
            n2, n3 = grids[1][0] * grids[1][1], grids[2][0] * grids[2][1]
            n_mid = n3 * (n2 // n3)
            fine, coarse = middle_grids(n_mid, grids[2])
            first = self.routing_block(grids[0], dims[0], grids[1], dims[1], n_mid, config.d_mid, shared)
            second = self.routing_block(fine, config.d_mid, coarse, dims[2], num_classes, config.d_out, shared)
            self.routing = nn.ModuleList([first, second])
        else:  # one block straight to the classes; a single scale meets itself
            routing = self.routing_block(grids[0], dims[0], grids[-1], dims[-1], num_classes, config.d_mid, shared)
            self.routing = nn.ModuleList([routing])

    def forward_primary(self, x: Tensor) -> list[Tensor]:
        """-> primary capsules [b, n_i, d_i] of every scale in use, finest first."""
        if self.runs_fused(x):
            return self.fused_capsules(self.fused_averages(x))
        maps = self.forward_features(x)
        return [patchify(maps[i]) for i, patchify in zip(self.scales, self.patchify, strict=True)]

    def forward_capsules(self, x: Tensor) -> Tensor:
        """-> class capsules [b, num_classes, d_out]."""
        u = self.forward_primary(x)
        if len(self.routing) == 1:
            return self.routing[0](u[0], u[-1])
        return self.routing[1](self.routing[0](u[0], u[1]), u[2])

    def forward(self, x: Tensor) -> Tensor:
        """-> class scores [b, num_classes]: the lengths of the class capsules."""
        return length(self.forward_capsules(x))

    def routing_state(self, x: Tensor) -> list[RoutingState]:
        """What every routing block does with a batch, in order. Blocks that cannot tell are left out."""
        inputs: dict[int, tuple[Tensor, ...]] = {}

        def listen(i: int, block: nn.Module) -> RemovableHandle:
            return block.register_forward_hook(lambda module, args, output: inputs.update({i: args}))

        hooks = [listen(i, block) for i, block in enumerate(self.routing)]
        try:
            self.forward_capsules(x)
        finally:
            for hook in hooks:
                hook.remove()
        blocks = [(i, block) for i, block in enumerate(self.routing) if i in inputs and hasattr(block, "state")]
        return [block.state(*inputs[i]).named(f"routing.{i}") for i, block in blocks]  # type: ignore[operator]


class MSPCapsDR(MSPCaps):
    """The paper's "4 x DR" ablation: each scale halves its capsules by dynamic routing, the fourth block joins them."""

    def build_routing(self, config: Config, num_classes: int) -> None:
        sizes = [rows * columns for rows, columns in self.grids]
        halves = [max(1, n // 2) for n in sizes]
        self.routing = nn.ModuleList(
            DynamicRouting(n, config.d_mid, half, config.d_mid) for n, half in zip(sizes, halves, strict=True)
        )
        self.routing.append(DynamicRouting(sum(halves), config.d_mid, num_classes, config.d_out))

    def forward_capsules(self, x: Tensor) -> Tensor:
        *per_scale, join = self.routing
        u = [routing(u) for routing, u in zip(per_scale, self.forward_primary(x), strict=True)]
        return join(torch.cat(u, dim=1))


def capsule_grid(img_size: tuple[int, int], scale: int, patch: int) -> Grid:
    """Rows and columns of capsules on the feature map that has been halved `scale` times."""
    grid = tuple(-(-side // 2**scale) // patch for side in img_size)
    if min(grid) < 1:
        least = 2**scale * (patch - 1) + 1
        nearest = tuple(max(side, least) for side in img_size)
        raise MspcapsError(
            f"an image of {img_size[0]} x {img_size[1]} pixels leaves no capsule at scale 1/{2**scale} with patches of "
            f"{patch}: the nearest size that works is {nearest[0]} x {nearest[1]}"
        )
    return grid[0], grid[1]


@register_model
def mspcaps_t(**task: Any) -> MSPCaps:
    return MSPCaps(TINY, **task)


@register_model
def mspcaps_t_unshared(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, shared=False), **task)


@register_model
def mspcaps_t_p2(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, patch=2), **task)


@register_model
def mspcaps_t_p3(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, patch=3), **task)


# The scale ablations keep only the blocks they need and the dimensions of the first routing block: 8 in, 16 out.
@register_model
def mspcaps_t_scale32(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, dims=(8, 8, 8), scales=(0,)), **task)


@register_model
def mspcaps_t_scale16(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, dims=(8, 8, 8), scales=(1,)), **task)


@register_model
def mspcaps_t_scale8(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, dims=(8, 8, 8), scales=(2,)), **task)


@register_model
def mspcaps_t_scale32_16(**task: Any) -> MSPCaps:
    return MSPCaps(replace(TINY, dims=(8, 8, 8), scales=(0, 1)), **task)


@register_model
def mspcaps_t_dr(**task: Any) -> MSPCaps:
    return MSPCapsDR(replace(TINY, dims=(8, 8, 8), d_mid=8, d_out=16), **task)


@register_model
def mspcaps_l(**task: Any) -> MSPCaps:
    return MSPCaps(LARGE, **task)


@register_model
def mspcaps_l_shared(**task: Any) -> MSPCaps:
    return MSPCaps(replace(LARGE, dims=(16, 16, 32), d_mid=32, d_out=64, shared=True), **task)


@register_model
def mspcaps_l_p2(**task: Any) -> MSPCaps:
    return MSPCaps(replace(LARGE, patch=2), **task)


@register_model
def mspcaps_l_p3(**task: Any) -> MSPCaps:
    return MSPCaps(replace(LARGE, patch=3), **task)


@register_model
def mspcaps_l_dr(**task: Any) -> MSPCaps:
    return MSPCapsDR(replace(LARGE, dims=(48, 48, 48), d_mid=48, d_out=96), **task)
