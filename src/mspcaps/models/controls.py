"""Control experiments on the routing of MSPCaps: MSPCaps-T with something else instead of cross-agreement routing.

Not in the paper. All of them have the backbone and the scales of mspcaps_t.
Parameters (3 x 32 x 32, 10 classes): mspcaps_t_self, mspcaps_t_mean and mspcaps_t_add 344,320 as mspcaps_t;
mspcaps_t_concat 557,312 as mspcaps_t_unshared; mspcaps_t_linear and mspcaps_t_linear_margin 323,306.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.capsules import AdditionFusion, ConcatenationFusion, MeanAgreementRouting, SelfAgreementRouting
from mspcaps.capsules.patchify import patch_averages
from mspcaps.models.model import LinearClassifier, MarginClassifier, Task, numbered
from mspcaps.models.mspcaps import MSRB, TINY, MSPCaps, capsule_grids
from mspcaps.models.registry import register_model


class PatchAverages(nn.Module):
    """Feature maps -> the mean over every patch [b, n_i, c_i], as in PatchifyCaps."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [patch_averages(f, self.patch) for f in maps]


class LinearHead(LinearClassifier):
    """No capsules: one linear layer on the patch averages of all scales of MSPCaps-T, trained with cross-entropy."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.grids = capsule_grids(task.img_size, TINY)
        self.backbone = MSRB(TINY, task.in_chans)
        self.patchify = PatchAverages(TINY.patch)
        self.num_features = sum(
            rows * columns * width for (rows, columns), width in zip(self.grids, TINY.widths, strict=True)
        )
        self.new_classifier(task.num_classes)

    def forward_features(self, x: Tensor) -> list[Tensor]:
        """-> patch averages [b, n_i, c_i] of every scale, finest first."""
        return self.patchify(self.backbone(self.normalize(x)))

    def forward_head(self, features: list[Tensor]) -> Tensor:
        return super().forward_head(torch.cat([u.flatten(1) for u in features], dim=1))

    def tensor_places(self) -> dict[str, Any]:
        return {"head.weight": self.grids}

    def forward_intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """-> map.i [b, c, h, w] and average.i [b, n, c] of every scale."""
        maps = self.backbone(self.normalize(x))
        return numbered("map", maps) | numbered("average", self.patchify(maps))

    upgrade_state = MSPCaps.upgrade_state


class LinearMargin(MarginClassifier, LinearHead):
    """The same layer trained as capsules are: with the margin loss, on scores in [0, 1] instead of lengths."""


@register_model
def mspcaps_t_self(task: Task) -> MSPCaps:
    """Weights every vote by its agreement with all votes, whatever their scale."""
    return MSPCaps(task, replace(TINY, routing=SelfAgreementRouting))


@register_model
def mspcaps_t_mean(task: Task) -> MSPCaps:
    """Weights a coarse capsule by its mean agreement with the fine capsules below it."""
    return MSPCaps(task, replace(TINY, routing=MeanAgreementRouting))


@register_model
def mspcaps_t_add(task: Task) -> MSPCaps:
    """Adds fine capsules to the coarse capsule above them, without any weighting."""
    return MSPCaps(task, replace(TINY, routing=AdditionFusion))


@register_model
def mspcaps_t_concat(task: Task) -> MSPCaps:
    """Concatenates fine capsules with the coarse capsule above them, without any weighting."""
    return MSPCaps(task, replace(TINY, routing=ConcatenationFusion))


@register_model
def mspcaps_t_linear(task: Task) -> LinearHead:
    return LinearHead(task)


@register_model
def mspcaps_t_linear_margin(task: Task) -> LinearMargin:
    return LinearMargin(task)
