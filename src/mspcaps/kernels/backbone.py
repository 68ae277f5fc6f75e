"""The MSRB backbone in training mode as one operator with a hand-written backward pass.

It computes what the `ResidualBlock`s of `models.mspcaps` and the average pooling of PatchifyCaps compute. cuDNN does
the convolutions (the first, with few channels, is a product with image patches), the kernels of `maps` do the rest. The
maps are NHWC in memory; the precision is that of x, BatchNorm's vectors are fp32.

The operator returns the statistics of the batch, and `backbone` updates the running ones: an operator that changes its
arguments cannot have an autograd formula. Both passes are opaque to torch.compile.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.kernels import maps
from mspcaps.kernels.maps import GradSources, Norm, narrow, narrow_conv

MAX_PATCH_CHANNELS = 4  # most input channels for which the first convolution is a product with image patches


def supported(x: Tensor, channels: Sequence[int], strides: Sequence[int], pools: Sequence[bool], patch: int) -> bool:
    """Whether the operator supports this input and these layers (channels: output channels of each convolution)."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.ndim != 4 or x.numel() == 0:
        return False
    b, few, h, w = x.shape
    if few <= MAX_PATCH_CHANNELS and b * h * w * -(-9 * few // 8) * 8 >= 2**31:  # its patches
        return False
    for c, stride, pool in zip(channels, strides, pools, strict=True):
        h, w = -(-h // stride), -(-w // stride)
        if b * h * w < 2 or b * h * w * c >= 2**31 or (pool and min(h, w) < patch):
            return False
    return True


def backbone(
    x: Tensor, weights: Sequence[Tensor], gammas: Sequence[Tensor], betas: Sequence[Tensor],
    running_means: Sequence[Tensor], running_vars: Sequence[Tensor],
    strides: Sequence[int], shortcuts: Sequence[bool], pools: Sequence[bool], patch: int,
    momentum: float = 0.1, eps: float = 1e-5,
) -> list[Tensor]:  # fmt: skip
    """x [b, c, h, w], normalised -> patch averages [b, n_i, c_i] of every layer with `pools`, n row-major.

    Each list has one entry per convolution: weights [c_out, c_in, 3, 3] (copied unless channels_last in memory),
    vectors [c_out]. A layer with a shortcut is relu(bn(conv(x)) + x), the others are relu(bn(conv(x))).
    """
    results = backbone_forward(
        x, [w.to(x.dtype) for w in weights], list(gammas), list(betas), list(running_means),
        list(strides), list(shortcuts), list(pools), patch, eps,
    )  # fmt: skip
    with torch.no_grad():
        mean, _, variance = results[-1].detach().unbind()
        channels = [len(w) for w in weights]
        batch = [*mean.split(channels), *variance.split(channels)]
        torch._foreach_lerp_([*running_means, *running_vars], batch, momentum)
    return results[: sum(pools)]


@torch.library.custom_op("mspcaps::backbone", mutates_args=())
def backbone_forward(
    x: Tensor, weights: list[Tensor], gammas: list[Tensor], betas: list[Tensor], shifts: list[Tensor],
    strides: list[int], shortcuts: list[bool], pools: list[bool], patch: int, eps: float,
) -> list[Tensor]:  # fmt: skip
    """-> the pooled maps, then what the backward pass needs: conv outputs and maps [b, h, w, c] of every layer, image
    patches, and mean, 1 / standard deviation and unbiased variance [3, sum of c]. Sums are taken around the shifts [c],
    which may be any values near the means."""
    channels = [len(w) for w in weights]
    pooled: list[Tensor] = []
    ys: list[Tensor] = []
    outs: list[Tensor] = []
    stats = x.new_empty(3, sum(channels), dtype=torch.float32)
    means, rstds, variances = (s.split(channels) for s in stats)
    patches = x.new_empty(0)
    # Autocast is up to the caller: here the precision is that of x.
    with torch.cuda.device_of(x), torch.autocast(x.device.type, enabled=False):
        sums = torch.zeros_like(stats[:2]).split(channels, dim=1)
        for i, weight in enumerate(weights):
            shift = None
            if i == 0 and few_channels(x, strides):
                patches, padded = maps.image_patches(x, weight)
                y = torch.bmm(patches, padded.t().expand(len(x), -1, -1)).view(len(x), *x.shape[2:], -1)
            elif i > 0 and narrow(weight):
                shift = shifts[i]
                y = narrow_conv(outs[-1], weight, strides[i], shift, sums[i])
            else:
                y = nhwc(F.conv2d(x if i == 0 else nchw(outs[-1]), weight, stride=strides[i], padding=1))
            norm = Norm(y, means[i], rstds[i], gammas[i], betas[i])
            residual, window = outs[-1] if shortcuts[i] else None, patch if pools[i] else 0
            out, averages = maps.normalised(norm, variances[i], sums[i], shift, residual, window, eps)
            ys.append(y)
            outs.append(out)
            if averages is not None:
                pooled.append(averages)
    return [*pooled, *ys, *outs, patches, stats]


@backbone_forward.register_fake
def _(x: Tensor, weights: list[Tensor], *rest: Any) -> list[Tensor]:
    *_, strides, _, pools, patch, _ = rest
    b, c_in, h, w = x.shape
    pooled, ys = [], []
    patches = x.new_empty(b, h * w, -(-9 * c_in // 8) * 8) if few_channels(x, strides) else x.new_empty(0)
    for weight, stride, pool in zip(weights, strides, pools, strict=True):
        h, w = -(-h // stride), -(-w // stride)
        ys.append(x.new_empty(b, h, w, weight.shape[0]))
        if pool:
            pooled.append(x.new_empty(b, (h // patch) * (w // patch), weight.shape[0]))
    stats = x.new_empty(3, sum(weight.shape[0] for weight in weights), dtype=torch.float32)
    return [*pooled, *ys, *[torch.empty_like(y) for y in ys], patches, stats]


@torch.library.custom_op("mspcaps::backbone_backward", mutates_args=())
def backbone_backward(
    grads: list[Tensor], x: Tensor, weights: list[Tensor], gammas: list[Tensor], betas: list[Tensor],
    saved: list[Tensor],
    strides: list[int], shortcuts: list[bool], pools: list[bool], patch: int, need_dx: bool,
) -> list[Tensor]:  # fmt: skip
    """-> dx (empty unless needed), d_weights, and [3, sum of c]: scratch, then the gradients of gamma and beta."""
    n, channels = len(weights), [len(w) for w in weights]
    ys, outs, (patches, stats) = saved[:n], saved[n : 2 * n], saved[2 * n :]
    means, rstds, _ = (s.split(channels) for s in stats)
    vectors = torch.zeros_like(stats)
    products, d_gammas, d_betas = (v.split(channels) for v in vectors)
    d_weights: list[Tensor] = [x.new_empty(0)] * n
    d_pooled, dx, above, skip = list(grads), x.new_empty(0), None, None
    with torch.cuda.device_of(x), torch.autocast(x.device.type, enabled=False), SideStream(x.device) as side:
        for i in reversed(range(n)):
            norm = Norm(ys[i], means[i], rstds[i], gammas[i], betas[i])
            capsules = d_pooled.pop().contiguous() if pools[i] else None
            source = GradSources(above, skip, capsules, patch, outs[i] if shortcuts[i] else None)
            # Writing the sum pays off if the shortcut needs it again, or if it replaces two maps.
            keep = shortcuts[i] or (above is not None and skip is not None)
            source = maps.gradient_sums(norm, source, products[i], d_betas[i], keep)
            in_place = not shortcuts[i]
            dy = maps.gradient_through_norm(norm, source, products[i], d_gammas[i], d_betas[i], in_place)
            skip = source.above if shortcuts[i] else None
            below = x if i == 0 else nchw(outs[i - 1])
            with side.after_main(dy, skip):
                if i == 0 and patches.numel():
                    d_weights[i] = patch_weight_gradient(dy, patches, weights[i])
                else:
                    _, d_weights[i], _ = conv_backward(nchw(dy), below, weights[i], strides[i], [False, True, False])
            if i > 0:
                above = nhwc(input_gradient(nchw(dy), below, weights[i], strides[i]))
            elif need_dx:
                dx, _, _ = conv_backward(nchw(dy), below, weights[i], strides[i], [True, False, False])
                dx = as_channels_last(dx)
    return [dx, *[as_channels_last(g) for g in d_weights], vectors]


@backbone_backward.register_fake
def _(grads: list[Tensor], x: Tensor, weights: list[Tensor], *rest: Any) -> list[Tensor]:
    _, _, saved, *_, need_dx = rest
    dx = as_channels_last(torch.empty_like(x)) if need_dx else x.new_empty(0)
    return [dx, *[as_channels_last(torch.empty_like(w)) for w in weights], torch.empty_like(saved[-1])]


def save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, gammas, betas, _, ctx.strides, ctx.shortcuts, ctx.pools, ctx.patch, _ = inputs
    ctx.set_materialize_grads(False)  # outputs that are only saved have no gradient, not even zeros
    ctx.save_for_backward(x, *weights, *gammas, *betas, *output[sum(ctx.pools) :])
    ctx.shapes = [t.shape for t in output[: sum(ctx.pools)]]


def gradients(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    n = len(ctx.strides)
    x, *rest = ctx.saved_tensors
    weights, gammas, betas, saved = rest[:n], rest[n : 2 * n], rest[2 * n : 3 * n], rest[3 * n :]
    pooled = [x.new_zeros(shape) if g is None else g for g, shape in zip(grads, ctx.shapes, strict=False)]
    dx, *d_weights, vectors = backbone_backward(
        pooled, x, weights, gammas, betas, saved,
        ctx.strides, ctx.shortcuts, ctx.pools, ctx.patch, ctx.needs_input_grad[0],
    )  # fmt: skip
    d_gammas, d_betas = (list(v.split([len(g) for g in gammas])) for v in vectors[1:])
    d_x, none = dx if ctx.needs_input_grad[0] else None, [None] * n  # the shifts only affect rounding
    return d_x, d_weights, d_gammas, d_betas, none, None, None, None, None, None


backbone_forward.register_autograd(gradients, setup_context=save)


class SideStream:
    """A second stream for work that is not needed before the end: in a captured CUDA graph the weight gradients become
    a branch of their own. Outside a capture everything runs in order, as cuDNN then times its algorithms and concurrent
    kernels could mislead it."""

    streams: dict[torch.device, torch.cuda.Stream] = {}  # noqa: RUF012, one per device, never freed

    def __init__(self, device: torch.device) -> None:
        self.device, self.kept_alive = device, []  # type: ignore[var-annotated]
        self.forks = device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def __enter__(self) -> "SideStream":
        if self.forks:
            self.main = torch.cuda.current_stream(self.device)
            if self.device not in self.streams:
                self.streams[self.device] = torch.cuda.Stream(self.device)
            self.stream = self.streams[self.device]
        return self

    def after_main(self, *needed: Tensor | None) -> Any:
        """Context: run beside the main stream once it has come this far. The `needed` tensors are kept alive until both
        streams join: otherwise the allocator could reuse their memory while the side stream still reads it."""
        self.kept_alive += needed
        if not self.forks:
            return contextlib.nullcontext()
        self.stream.wait_stream(self.main)
        return torch.cuda.stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.forks:
            self.main.wait_stream(self.stream)
        self.kept_alive.clear()


def few_channels(x: Tensor, strides: list[int]) -> bool:
    return x.shape[1] <= MAX_PATCH_CHANNELS and strides[0] == 1


def conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, stride: int, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, mask
    )  # fmt: skip


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """With our own kernel for narrow convolutions; for wide ones cuDNN was faster on an H200."""
    if stride == 1 and narrow(weight):
        return nchw(narrow_conv(nhwc(dy), weight, 1, transposed=True))
    return conv_backward(dy, x, weight, stride, [True, False, False])[0]


def patch_weight_gradient(dy: Tensor, patches: Tensor, weight: Tensor) -> Tensor:
    """One product per image, to split the work over the batch instead of one long thin product, then their sum."""
    o, c = weight.shape[:2]
    per_image = torch.bmm(dy.flatten(1, 2).transpose(1, 2), patches)  # [b, o, k]
    # The sum over the images as a product, instead of a separate reduction.
    total = per_image.new_ones(1, len(dy)) @ per_image.flatten(1)
    return total.view(o, -1)[:, : 9 * c].reshape(o, 3, 3, c).permute(0, 3, 1, 2)


def nhwc(t: Tensor) -> Tensor:
    """[b, c, h, w] -> contiguous [b, h, w, c], a view if t is channels_last in memory."""
    return t.permute(0, 2, 3, 1).contiguous()


def nchw(t: Tensor) -> Tensor:
    return t.permute(0, 3, 1, 2)


def as_channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)
