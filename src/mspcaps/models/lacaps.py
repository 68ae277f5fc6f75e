"""LaCaps: local agreement capsules. A family of our own; docs/lacaps.md has the equations and the measurements.

Three feature maps, each at half the resolution of the one before, are cut into patches, and every patch becomes a
capsule. The capsules of all scales vote for the classes through the same matrix. A patch adds to its own vote those of
the finer patches in a window, weighted by how well they agree with it. No weight belongs to a position in the image, so
one set of weights serves every image size. The heads `_average` and `_linear` on the same backbone are the controls.
Parameters (3 x 32 x 32, 10 classes): lacaps_t 336,690 (deep 316,570); lacaps_t_average 317,610; lacaps_t_linear
352,362; lacaps_l 9,309,122.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import AgreementPooling, LocalAgreementRouting, States, cast_votes, length_cross_entropy
from mspcaps.capsules.patchify import Grid
from mspcaps.errors import MspcapsError
from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.layers import BatchNorm, ConvBN, Dropout, Normalize, check_img_size, run_block
from mspcaps.models.model import LinearClassifier, Task, numbered
from mspcaps.models.registry import register_model


@dataclass(frozen=True)
class Config:
    """What differs between the sizes, and the options."""

    widths: tuple[int, int, int]  # channels of the stages
    blocks: tuple[int, int, int]  # per stage
    expansion: int  # factor by which a block widens between its two 1x1 convolutions
    dim: int  # d, dimension of a patch's capsule
    d_out: int  # e, dimension of a vote and of a class capsule
    kernel: int = 5  # side of the depthwise kernels
    patch: int = 4
    window: int = 4  # side of the square of finer patches that vote for a patch
    hide: float = 0.0  # share of the wholes without a vote in a training step, so that their parts must do without it


TINY = Config(widths=(32, 64, 128), blocks=(2, 3, 3), expansion=2, dim=64, d_out=8)
DEEP = replace(TINY, widths=(24, 48, 96), blocks=(4, 6, 5))  # the same cost, twice the blocks
LARGE = Config(widths=(96, 192, 384), blocks=(4, 6, 8), expansion=3, dim=192, d_out=16)


class Block(nn.Module):
    """x + f(x), [b, c, h, w] -> the same shape: a depthwise convolution, then two 1x1 convolutions with a GELU."""

    def __init__(self, width: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        self.bn1 = BatchNorm(width)
        self.expand = nn.Conv2d(width, hidden, 1)
        self.reduce = nn.Conv2d(hidden, width, 1, bias=False)
        self.bn2 = BatchNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn2(self.reduce(F.gelu(self.expand(self.bn1(self.depthwise(x))))))


class Halve(nn.Module):
    """[b, c, h, w] -> [b, width, ceil(h / 2), ceil(w / 2)]: a 2x2 convolution of stride 2, BatchNorm."""

    def __init__(self, in_chans: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, width, 2, stride=2, bias=False)
        self.bn = BatchNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))))


class Backbone(nn.Module):
    """[b, c, h, w] -> the last map of every stage, finest first: at full, half and a quarter of the resolution.

    The maps go through BatchNorm and GELU, so that the mean over a patch measures how much of a feature is there. With
    `scales=1` only the coarsest map is returned.
    """

    def __init__(self, config: Config, task: Task, scales: int = 3) -> None:
        super().__init__()
        check_img_size(task.img_size)
        if config.kernel % 2 == 0:
            raise MspcapsError(f"kernel is {config.kernel}, but must be odd, so that it has a centre")
        self.stages, chans = nn.ModuleList(), task.in_chans
        for width, count in zip(config.widths, config.blocks, strict=True):
            first = Halve(chans, width) if self.stages else ConvBN(chans, width)
            blocks = (Block(width, config.expansion * width, config.kernel) for _ in range(count))
            self.stages.append(nn.Sequential(first, *blocks))
            chans = width
        self.norms = nn.ModuleList(BatchNorm(width) for width in config.widths[-scales:])
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = run_block(block, x, self.grad_checkpointing)
            maps.append(x)
        return [F.gelu(norm(f)) for norm, f in zip(self.norms, maps[-len(self.norms) :], strict=True)]


def patch_means(f: Tensor, patch: int) -> Tensor:
    """[b, c, h, w] -> [b, ceil(h / patch), ceil(w / patch), c]; patches at the border may be smaller."""
    return F.avg_pool2d(f, patch, ceil_mode=True, count_include_pad=False).permute(0, 2, 3, 1)


def patch_grid(img_size: tuple[int, int], cell: int) -> Grid:
    """Rows and columns of patches of `cell` x `cell` pixels."""
    return -(-img_size[0] // cell), -(-img_size[1] // cell)


class PatchCapsules(nn.Module):
    """Feature map [b, c, h, w] -> a capsule for every patch [b, rows, columns, d].

    BatchNorm, not LayerNorm: an uninformative patch may keep a short capsule.
    """

    def __init__(self, in_chans: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(in_chans, dim, bias=False)
        self.bn = BatchNorm(dim)

    def extra_repr(self) -> str:
        return f"patch={self.patch}"

    def forward(self, f: Tensor) -> Tensor:
        u = self.project(patch_means(f, self.patch))
        return self.bn(u.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


INITIAL_SCALE = 0.1  # of the votes: class capsules start short, where squash does not saturate


class Votes(nn.Module):
    """Capsules [b, h, w, d] -> the vote of each capsule for every class [b, h, w, j, e], through one shared matrix.

    Without the bias a capsule and its negative would support the same class, because only the length of a vote counts.
    """

    def __init__(self, dim: int, num_classes: int, d_out: int) -> None:
        super().__init__()
        self.w = nn.Parameter(INITIAL_SCALE * torch.randn(dim, num_classes, d_out) / dim**0.5)
        self.bias = nn.Parameter(INITIAL_SCALE * torch.randn(num_classes, d_out))

    def forward(self, u: Tensor) -> Tensor:
        return cast_votes(u.unsqueeze(0), self.w.unsqueeze(0)).squeeze(0) + self.bias


class LaCaps(CapsuleModel):
    """Backbone, a capsule per patch and scale, votes, local agreement from fine to coarse, class capsules.

    [b, in_chans, h, w] in [0, 1], of any size -> lengths [b, num_classes].
    """

    criterion = staticmethod(length_cross_entropy)

    def __init__(self, task: Task, config: Config) -> None:
        super().__init__(task)
        self.normalize = Normalize(task.mean, task.std)  # takes any image size
        self.patch, self.d_out = config.patch, config.d_out
        self.backbone = Backbone(config, task)
        self.patchify = nn.ModuleList(PatchCapsules(width, config.dim, config.patch) for width in config.widths)
        self.votes = Votes(config.dim, task.num_classes, config.d_out)
        local = [LocalAgreementRouting(config.d_out, config.window) for _ in config.widths[1:]]
        self.routing = nn.ModuleList([*local, AgreementPooling()])
        self.hide = nn.ModuleList(Dropout(config.hide) for _ in local)
        self.num_features = config.dim * sum(rows * columns for _, (rows, columns) in self.patch_grids())

    def patch_grids(self) -> list[tuple[int, Grid]]:
        cells = [self.patch * 2**i for i in range(len(self.patchify))]
        return [(cell, patch_grid(self.img_size, cell)) for cell in cells]

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        return self.backbone(self.normalize(x))

    def make_capsules(self, maps: list[Tensor]) -> list[Tensor]:
        """-> capsules [b, rows, columns, d] of every scale, finest first."""
        return [patchify(f) for patchify, f in zip(self.patchify, maps, strict=True)]

    def route_blocks(self, u: list[Tensor], states: States | None = None) -> list[Tensor]:
        """-> the votes of the wholes of every scale but the finest [b, h, w, j, e], the class capsules last."""
        fine, *coarser = (self.votes(capsules) for capsules in u)
        *local, pooling = self.routing
        routed = []
        for block, hide, coarse in zip(local, self.hide, coarser, strict=True):
            kept = hide(torch.ones_like(coarse[..., :1, :1]))  # [b, h, w, 1, 1]
            fine, support = block(fine, coarse * kept, states)
            routed.append(fine)
        return [*routed, pooling(fine, support, states)]

    def get_classifier(self) -> nn.Module:
        return self.votes

    def new_classifier(self, num_classes: int) -> None:
        self.votes = Votes(self.votes.w.shape[0], num_classes, self.d_out)

    def no_weight_decay(self) -> set[str]:
        return {name for name, p in self.named_parameters() if p.ndim < 2 or name.endswith(("offset", "votes.bias"))}


class AverageHead(LinearClassifier):
    """No capsules: the mean over the last map of LaCaps's backbone, then one linear layer, trained with cross-entropy.

    [b, in_chans, h, w] in [0, 1], of any size -> logits [b, num_classes].
    """

    scales = 1

    def __init__(self, task: Task, config: Config) -> None:
        super().__init__(task)
        self.normalize = Normalize(task.mean, task.std)  # takes any image size
        self.backbone = Backbone(config, task, self.scales)
        self.num_features = config.widths[-1]
        self.new_classifier(task.num_classes)

    def forward_features(self, x: Tensor) -> Any:
        """-> the last map [b, c, h, w]."""
        return self.backbone(self.normalize(x))[-1]

    def forward_head(self, features: Any) -> Tensor:
        return super().forward_head(features.mean((2, 3)))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.i [b, c, h, w] of every scale that the head uses; the coarsest is map.2."""
        return numbered("map", self.backbone(self.normalize(x)), 3 - self.scales)

    def no_weight_decay(self) -> set[str]:
        return {name for name, p in self.named_parameters() if p.ndim < 2}


class PatchesHead(AverageHead):
    """No capsules: one linear layer on all the patches that are capsules in LaCaps, so for one image size only."""

    scales = 3

    def __init__(self, task: Task, config: Config) -> None:
        super().__init__(task, config)
        self.normalize = Normalize(task.mean, task.std, task.img_size)
        self.patch = config.patch
        self.grids = [patch_grid(task.img_size, config.patch * 2**i) for i in range(len(config.widths))]
        self.num_features = sum(
            rows * columns * width for (rows, columns), width in zip(self.grids, config.widths, strict=True)
        )
        self.new_classifier(task.num_classes)

    def forward_features(self, x: Tensor) -> list[Tensor]:
        """-> patch averages [b, rows, columns, c] of every scale, finest first."""
        return [patch_means(f, self.patch) for f in self.backbone(self.normalize(x))]

    def forward_head(self, features: list[Tensor]) -> Tensor:
        return self.head(torch.cat([u.flatten(1) for u in features], dim=1))

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.i [b, c, h, w] and average.i [b, rows, columns, c] of every scale."""
        maps = super().forward_intermediates(x)
        return maps | numbered("average", [patch_means(f, self.patch) for f in maps.values()])

    def tensor_places(self) -> dict[str, Any]:
        return {"head.weight": self.grids}


@register_model
def lacaps_t(
    task: Task, *, deep: bool = False, kernel: int = 5, patch: int = 4, window: int = 4, hide: float = 0.0
) -> LaCaps:
    return LaCaps(task, replace(DEEP if deep else TINY, kernel=kernel, patch=patch, window=window, hide=hide))


@register_model
def lacaps_t_average(task: Task, *, deep: bool = False, kernel: int = 5) -> AverageHead:
    return AverageHead(task, replace(DEEP if deep else TINY, kernel=kernel))


@register_model
def lacaps_t_linear(task: Task, *, deep: bool = False, kernel: int = 5, patch: int = 4) -> PatchesHead:
    return PatchesHead(task, replace(DEEP if deep else TINY, kernel=kernel, patch=patch))


@register_model
def lacaps_l(task: Task, *, kernel: int = 5, patch: int = 4, window: int = 4, hide: float = 0.0) -> LaCaps:
    return LaCaps(task, replace(LARGE, kernel=kernel, patch=patch, window=window, hide=hide))
