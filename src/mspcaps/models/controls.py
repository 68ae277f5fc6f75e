"""What the routing of MSPCaps is worth: MSPCaps-T with something else in the place of cross-agreement routing.

Not in the paper. Backbone and scales are those of mspcaps_t in all of them.
Parameters (3 x 32 x 32, 10 classes): mspcaps_t_self and mspcaps_t_mean 344,320 as mspcaps_t; mspcaps_t_linear and
mspcaps_t_linear_margin 323,306.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps.capsules import MeanAgreementRouting, SelfAgreementRouting, margin_loss
from mspcaps.models.mspcaps import MSRB, TINY, Config, MSPCaps
from mspcaps.models.registry import Model, register_model


class SelfAgreement(MSPCaps):
    """Every vote is weighed by its agreement with all the others, whatever its scale."""

    routing_block = SelfAgreementRouting


class MeanAgreement(MSPCaps):
    """A coarse capsule is weighed by its mean agreement with the fine ones below it."""

    routing_block = MeanAgreementRouting


class LinearHead(MSRB, Model):
    """No capsules: one linear layer on the patch averages of all scales, trained with cross-entropy."""

    loss = staticmethod(F.cross_entropy)

    def __init__(self, config: Config, num_classes: int, **backbone: Any) -> None:
        super().__init__(config, **backbone)
        sizes = [rows * columns * config.widths[i] for i, (rows, columns) in zip(self.scales, self.grids, strict=True)]
        self.head = nn.Linear(sum(sizes), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """-> class scores [b, num_classes], before the softmax."""
        if self.runs_fused(x):
            averages = self.fused_averages(x)
        else:
            maps = self.forward_features(x)
            averages = [F.avg_pool2d(maps[i], self.patch).permute(0, 2, 3, 1) for i in self.scales]
        return self.head(torch.cat([u.flatten(1) for u in averages], dim=1))


class LinearMargin(LinearHead):
    """The same layer, trained as capsules are: scores in [0, 1] in place of their lengths, margin loss."""

    loss = staticmethod(margin_loss)  # type: ignore[assignment]
    scores_are_lengths = True  # as far as confidence goes

    def forward(self, x: Tensor) -> Tensor:
        """-> class scores [b, num_classes] in [0, 1]."""
        return super().forward(x).sigmoid()


@register_model
def mspcaps_t_self(**task: Any) -> SelfAgreement:
    return SelfAgreement(TINY, **task)


@register_model
def mspcaps_t_mean(**task: Any) -> MeanAgreement:
    return MeanAgreement(TINY, **task)


@register_model
def mspcaps_t_linear(**task: Any) -> LinearHead:
    return LinearHead(TINY, **task)


@register_model
def mspcaps_t_linear_margin(**task: Any) -> LinearMargin:
    return LinearMargin(TINY, **task)
