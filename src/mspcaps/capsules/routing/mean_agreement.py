"""Cross-agreement routing with the mean over a group of fine capsules in place of the paper's maximum."""

from torch import Tensor

from mspcaps.capsules.routing.cross_agreement import CrossAgreementRouting


class MeanAgreementRouting(CrossAgreementRouting):
    """Fine capsules [b, n1, d1] and coarse capsules [b, n2, d2] -> output capsules [b, n_out, d_out]."""

    def pooled(self, agreement: Tensor) -> Tensor:
        """Agreements [k, b, m, j] -> what a coarse capsule is weighed by [k, b, j]."""
        return agreement.mean(2)
