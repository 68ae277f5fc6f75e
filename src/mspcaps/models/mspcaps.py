"""MSPCaps: Multi-Scale Patchify Capsule Network with Cross-Agreement Routing.

Paper: Hu, Han, Sun, Ren, "MSPCaps: A Multi-Scale Patchify Capsule Network with Cross-Agreement Routing for Visual
Recognition", https://github.com/abdn-hyd/MSPCaps.
Differs from it: in no way that we know of, though most of its ablations come out higher here than printed
(docs/results.md). Where the paper is silent, we chose what reproduces every parameter count it prints; docs/paper.md
lists what no count decides, such as the capsules of the _dr models and of mspcaps_l_shared. Vote weights start from
N(0, 1 / d_in), position embeddings from N(0, 1), everything else as in PyTorch.
Parameters (3 x 32 x 32, 10 classes): mspcaps_t 344,320 (343,616 without position embeddings, 4,182,784 with a decoder,
which only training uses); mspcaps_l 10,932,944.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import AdditionFusion, CrossAgreementRouting, DynamicRouting, PatchifyCaps, States
from mspcaps.capsules.patchify import Grid
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import ConvBN, check_img_size, run_block
from mspcaps.models.model import Task
from mspcaps.models.registry import register_model


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
    routing: type[CrossAgreementRouting] | type[AdditionFusion] = CrossAgreementRouting
    position: bool = True  # whether primary capsules have position embeddings
    decoder: bool = False  # whether a decoder adds a reconstruction loss


TINY = Config(widths=(32, 64, 128), depth=2, dims=(8, 8, 16), d_mid=16, d_out=32, patch=4, shared=True)
LARGE = Config(widths=(128, 256, 512), depth=3, dims=(16, 32, 64), d_mid=64, d_out=128, patch=4, shared=False)


class ResidualBlock(nn.Module):
    """A 3x3 convolution that sets width and stride, then depth - 1 more with identity shortcuts."""

    def __init__(self, in_chans: int, width: int, depth: int, stride: int) -> None:
        super().__init__()
        self.first = ConvBN(in_chans, width, stride)
        self.rest = nn.ModuleList(ConvBN(width, width) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for conv in self.rest:
            x = F.relu(conv(x) + x)
        return x


class MSRB(nn.Module):
    """The multi-scale ResNet backbone: [b, c, h, w] -> the feature maps f_i of the scales in use, finest first."""

    def __init__(self, config: Config, in_chans: int) -> None:
        super().__init__()
        self.scales = config.scales
        chans = (in_chans, *config.widths)
        self.blocks = nn.ModuleList(
            ResidualBlock(chans[i], chans[i + 1], config.depth, stride=1 if i == 0 else 2)
            for i in range(config.scales[-1] + 1)
        )
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for block in self.blocks:
            x = run_block(block, x, self.grad_checkpointing)
            maps.append(x)
        return [maps[i] for i in self.scales]


class MultiScalePatchify(nn.ModuleList):
    """A PatchifyCaps for every scale in use: feature maps f_i -> primary capsules u_i [b, n_i, d_i]."""

    @property
    def patch(self) -> int:
        return self[0].patch  # type: ignore[return-value]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [patchify(f) for patchify, f in zip(self, maps, strict=True)]


class MSPCaps(CapsuleModel):
    """Figure 2 of the paper: backbone, PatchifyCaps per scale, routing from fine to coarse, class capsules."""

    def __init__(self, task: Task, config: Config) -> None:
        super().__init__(task)
        grids = capsule_grids(task.img_size, config)
        self.grids, self.scales = grids, config.scales
        self.backbone = MSRB(config, task.in_chans)
        self.patchify = MultiScalePatchify(
            PatchifyCaps(config.widths[i], config.dims[i], grid, config.patch, config.position)
            for i, grid in zip(config.scales, grids, strict=True)
        )
        self.routing = nn.ModuleList(self.build_routing(config))
        self.num_features = sum(math.prod(g) * config.dims[i] for i, g in zip(config.scales, grids, strict=True))
        self.d_out = config.d_out
        self.decoder = self.new_decoder(task.num_classes) if config.decoder else None

    def build_routing(self, config: Config) -> list[nn.Module]:
        """The CAR blocks: two for three scales, else one straight to the classes; a single scale is both inputs."""
        grids, dims, block, shared = self.grids, [config.dims[i] for i in config.scales], config.routing, config.shared
        if len(grids) < 3:
            return [block(grids[0], dims[0], grids[-1], dims[-1], self.num_classes, config.d_out, shared)]
        n2, n3 = math.prod(grids[1]), math.prod(grids[2])
        n_mid = n3 * (n2 // n3)
        fine, coarse = middle_grids(n_mid, grids[2])
        return [
            block(grids[0], dims[0], grids[1], dims[1], n_mid, config.d_mid, shared),
            block(fine, config.d_mid, coarse, dims[2], self.num_classes, config.d_out, shared),
        ]

    def patch_grids(self) -> list[tuple[int, Grid]]:
        return [(self.patchify.patch * 2**i, grid) for i, grid in zip(self.scales, self.grids, strict=True)]

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """-> feature maps f_i [b, C_i, h, w] of every scale in use, finest first."""
        return self.backbone(self.normalize(x))

    def make_capsules(self, maps: list[Tensor]) -> list[Tensor]:
        """-> primary capsules u_i [b, n_i, d_i] of every scale in use."""
        return self.patchify(maps)

    def route_blocks(self, u: list[Tensor], states: States | None = None) -> list[Tensor]:
        """-> the output of every routing block [b, j, e], class capsules last."""
        if len(u) < 3:
            return [self.routing[0](u[0], u[-1], states)]
        middle = self.routing[0](u[0], u[1], states)
        return [middle, self.routing[1](middle, u[2], states)]

    def get_classifier(self) -> nn.Module:
        return self.routing[-1]

    def new_classifier(self, num_classes: int) -> None:
        self.routing[-1] = self.routing[-1].with_outputs(num_classes)
        if self.decoder is not None:
            self.decoder = self.new_decoder(num_classes)

    @classmethod
    def upgrade_state(cls, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """In the first shipped weights the blocks of the backbone belonged to the network itself."""
        return {f"backbone.{name}" if name.startswith("blocks.") else name: t for name, t in tensors.items()}


class MSPCapsDR(MSPCaps):
    """The paper's "4 x DR" ablation: dynamic routing halves the capsules of each scale; a fourth block joins them."""

    def __init__(self, task: Task, config: Config, iterations: int) -> None:
        self.iterations = iterations
        super().__init__(task, config)

    def build_routing(self, config: Config) -> list[nn.Module]:
        sizes = [math.prod(grid) for grid in self.grids]
        halves = [max(1, n // 2) for n in sizes]
        per_scale = [
            DynamicRouting(n, config.d_mid, half, config.d_mid, self.iterations)
            for n, half in zip(sizes, halves, strict=True)
        ]
        return [*per_scale, DynamicRouting(sum(halves), config.d_mid, self.num_classes, config.d_out, self.iterations)]

    def route_blocks(self, u: list[Tensor], states: States | None = None) -> list[Tensor]:
        *per_scale, join = self.routing
        halved = [routing(capsules, states) for routing, capsules in zip(per_scale, u, strict=True)]
        return [*halved, join(torch.cat(halved, dim=1), states)]

    def tensor_places(self) -> dict[str, Any]:
        return super().tensor_places() | {f"routing.{i}.w": self.grids for i in range(len(self.routing))}


def capsule_grids(img_size: tuple[int, int], config: Config) -> list[Grid]:
    """Rows and columns of capsules at each scale in use; the feature map of scale i has been halved i times."""
    strides, patch = [2**i for i in config.scales], config.patch
    why = f"leaves no capsule at scale 1/{strides[-1]} with patches of {patch}"
    check_img_size(img_size, strides[-1] * (patch - 1) + 1, why)  # the coarsest scale needs the largest image
    rows, columns = ([-(-side // stride) // patch for stride in strides] for side in img_size)
    return list(zip(rows, columns, strict=True))


def middle_grids(n_mid: int, coarse: Grid) -> tuple[Grid, Grid]:
    """(grid of the middle capsules, grid of the coarse ones) for the second routing block.

    Middle capsules have numbers, but no positions. If r x r of them meet each coarse capsule, they are laid out on a
    grid r times as fine; otherwise groups are runs of consecutive capsules.
    """
    n = math.prod(coarse)
    r = math.isqrt(n_mid // n)
    if r * r * n == n_mid:
        return (r * coarse[0], r * coarse[1]), coarse
    return (1, n_mid), (1, n)


@register_model
def mspcaps_t(
    task: Task, *, patch: int = 4, shared: bool = True, position: bool = True, decoder: bool = False
) -> MSPCaps:
    return MSPCaps(task, replace(TINY, patch=patch, shared=shared, position=position, decoder=decoder))


@register_model
def mspcaps_t_unshared(task: Task) -> MSPCaps:
    return mspcaps_t(task, shared=False)


@register_model
def mspcaps_t_p2(task: Task) -> MSPCaps:
    return mspcaps_t(task, patch=2)


@register_model
def mspcaps_t_p3(task: Task) -> MSPCaps:
    return mspcaps_t(task, patch=3)


# The scale ablations keep the blocks they need and have the dimensions of the first routing block: 8 in, 16 out.
ONE_BLOCK = replace(TINY, dims=(8, 8, 8), d_out=16)


@register_model
def mspcaps_t_scale32(task: Task) -> MSPCaps:
    return MSPCaps(task, replace(ONE_BLOCK, scales=(0,)))


@register_model
def mspcaps_t_scale16(task: Task) -> MSPCaps:
    return MSPCaps(task, replace(ONE_BLOCK, scales=(1,)))


@register_model
def mspcaps_t_scale8(task: Task) -> MSPCaps:
    return MSPCaps(task, replace(ONE_BLOCK, scales=(2,)))


@register_model
def mspcaps_t_scale32_16(task: Task) -> MSPCaps:
    return MSPCaps(task, replace(ONE_BLOCK, scales=(0, 1)))


@register_model
def mspcaps_t_dr(task: Task, *, iterations: int = 3) -> MSPCaps:
    return MSPCapsDR(task, replace(TINY, dims=(8, 8, 8), d_mid=8, d_out=16), iterations)


@register_model
def mspcaps_l(task: Task, *, patch: int = 4) -> MSPCaps:
    return MSPCaps(task, replace(LARGE, patch=patch))


@register_model
def mspcaps_l_shared(task: Task) -> MSPCaps:
    return MSPCaps(task, replace(LARGE, dims=(16, 16, 32), d_mid=32, d_out=64, shared=True))


@register_model
def mspcaps_l_p2(task: Task) -> MSPCaps:
    return mspcaps_l(task, patch=2)


@register_model
def mspcaps_l_p3(task: Task) -> MSPCaps:
    return mspcaps_l(task, patch=3)


@register_model
def mspcaps_l_dr(task: Task, *, iterations: int = 3) -> MSPCaps:
    return MSPCapsDR(task, replace(LARGE, dims=(48, 48, 48), d_mid=48, d_out=96), iterations)
