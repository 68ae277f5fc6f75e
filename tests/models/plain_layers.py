"""What the plain references of several families share: BatchNorm by its formula, in both modes."""

from torch import Tensor, nn

from mspcaps.models.layers import BatchNorm


def move_statistics(model: nn.Module) -> None:
    """Running statistics of BatchNorm other than the initial ones."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            nn.init.normal_(module.running_mean, std=0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]


def batch_norm(x: Tensor, norm: BatchNorm) -> Tensor:
    """With the statistics of the batch in training mode, with the running ones in eval mode."""
    mean, var = norm.running_mean, norm.running_var
    if norm.training:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    scale = norm.weight / (var + norm.eps).sqrt()  # type: ignore[operator]
    return (x - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]  # type: ignore[index]
