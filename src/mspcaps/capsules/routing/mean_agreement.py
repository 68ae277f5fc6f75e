"""Cross-agreement routing with the mean over a group of fine capsules in place of the paper's maximum."""

from torch import Tensor

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting
from mspcaps.capsules.squash import squash


class MeanAgreementRouting(CrossAgreementRouting):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out]."""

    def forward(self, u1: Tensor, u2: Tensor) -> Tensor:
        agreement, coarse = self.agreements(u1, u2)
        coupling = agreement.mean(2).softmax(0)  # [k, b, j], sums to one over k
        return squash((coupling.unsqueeze(-1) * coarse).sum(0))  # [b, j, e]
