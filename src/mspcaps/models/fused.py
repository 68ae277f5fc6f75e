"""The way of MSPCaps through our kernels, for training on a GPU: two operators from the image to the primary capsules.

What they compute is defined by the modules in models/mspcaps.py, which run everywhere else.
"""

from torch import Tensor, nn

from mspcaps.capsules import PatchifyCaps
from mspcaps.kernels import TRITON, embedding, is_plain
from mspcaps.kernels.backbone import backbone, supported
from mspcaps.models.layers import BatchNorm, Conv3x3, ConvBN, Normalize


class FusedBackbone(nn.Module):
    """Residual blocks whose maps are averaged over patches, and the PatchifyCaps of these averages, if it has any."""

    block: type[nn.Module]  # what all of `blocks` must be
    blocks: nn.ModuleList
    normalize: Normalize
    scales: tuple[int, ...]
    patch: int

    def layers(self) -> list[ConvBN]:
        """All convolutions of the backbone in order."""
        return [layer for block in self.blocks for layer in block.layers()]  # type: ignore[operator]

    def capsule_layers(self) -> list[PatchifyCaps]:
        return list(getattr(self, "patchify", []))

    def pooled_layers(self) -> list[bool]:
        """For each of the convolutions: whether its map is averaged."""
        depth = len(self.layers()) // len(self.blocks)
        return [i % depth == depth - 1 and i // depth in self.scales for i in range(len(self.layers()))]

    def runs_fused(self, x: Tensor) -> bool:
        """When training on a GPU the backbone is one operator with a hand-written backward."""
        if not (self.training and isinstance(x, Tensor) and x.is_cuda and TRITON and self.can_be_fused()):
            return False
        layers = self.layers()
        widths, strides = [layer.conv.out_channels for layer in layers], [layer.conv.stride[0] for layer in layers]
        return supported(x, widths, strides, self.pooled_layers(), self.patch)

    def can_be_fused(self) -> bool:
        """Whether no module that the operators pass by is more than they know: changed, listened to, or frozen."""
        layers, capsules = self.layers(), self.capsule_layers()
        norms = [layer.bn for layer in layers]
        eps, momentum = norms[0].eps, norms[0].momentum
        return (
            momentum is not None
            and all(bn.training and bn.eps == eps and bn.momentum == momentum for bn in norms)
            and all(is_plain(bn, BatchNorm) for bn in norms)
            and all(is_plain(layer.conv, Conv3x3) and is_plain(layer, ConvBN) for layer in layers)
            and all(is_plain(block, self.block) for block in self.blocks)
            and all(is_plain(layer, PatchifyCaps) for layer in capsules)
            and all(is_plain(layer.project, nn.Linear) and is_plain(layer.norm, nn.LayerNorm) for layer in capsules)
            and all(layer.norm.eps == capsules[0].norm.eps for layer in capsules)
        )

    def fused_averages(self, x: Tensor) -> list[Tensor]:
        """[b, c, h, w] in [0, 1] -> the patch averages [b, n_i, c_i] of every scale in use, finest first."""
        layers = self.layers()
        depth = len(layers) // len(self.blocks)
        return backbone(
            self.normalize(x).to(layers[0].conv.weight.dtype),
            [layer.conv.weight for layer in layers],
            [layer.bn.weight for layer in layers],
            [layer.bn.bias for layer in layers],
            [layer.bn.running_mean for layer in layers],  # type: ignore[misc]
            [layer.bn.running_var for layer in layers],  # type: ignore[misc]
            strides=[layer.conv.stride[0] for layer in layers],
            shortcuts=[i % depth > 0 for i in range(len(layers))],
            pools=self.pooled_layers(),
            patch=self.patch,
            momentum=layers[0].bn.momentum or 0.0,
            eps=layers[0].bn.eps,
        )

    def fused_capsules(self, averages: list[Tensor]) -> list[Tensor]:
        """Patch averages [b, n_i, c_i] -> primary capsules [b, n_i, d_i]."""
        layers = self.capsule_layers()
        if not embedding.supported(averages, [len(layer.project.weight) for layer in layers]):
            return [layer.embed(u) for layer, u in zip(layers, averages, strict=True)]
        return embedding.embed(
            averages,
            [layer.project.weight for layer in layers],
            [layer.project.bias for layer in layers],
            [layer.position for layer in layers],
            [layer.norm.weight for layer in layers],
            [layer.norm.bias for layer in layers],
            layers[0].norm.eps,
        )
