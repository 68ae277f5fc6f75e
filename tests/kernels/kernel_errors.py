"""How far a kernel is from its reference in float64."""

from torch import Tensor


def error(actual: Tensor, exact: Tensor) -> float:
    """Relative Frobenius error."""
    return float(
        (actual.detach().double().cpu() - exact.detach().cpu()).norm() / exact.detach().cpu().norm().clamp_min(1e-30)
    )
