"""Layers that more than one family uses."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mspcaps.errors import MspcapsError

LEAST_STD = 1e-3  # a constant channel would be divided by zero


def check_floating(x: Tensor) -> None:
    """Refuses bytes, which would otherwise be taken for numbers in [0, 1]."""
    if not isinstance(x, Tensor):
        raise MspcapsError(f"images must be a tensor, not {type(x).__name__}: use torch.from_numpy for arrays")
    if not x.is_floating_point():
        raise MspcapsError(f"images must be floating-point numbers in [0, 1], not {x.dtype}: divide bytes by 255")


MAX_PIXEL = 20.0  # far above 1, even with noise added; bytes that became floats exceed it


def check_range(x: Tensor) -> None:
    """Refuses bytes that were turned into floats but not divided by 255. On the CPU only: a GPU would have to wait."""
    if x.device.type != "cpu" or not x.numel() or torch.compiler.is_compiling():
        return
    try:
        highest = float(x.detach().amax())
    except RuntimeError:  # inside torch.func.vmap a batch has no values to look at
        return
    if highest > MAX_PIXEL:
        raise MspcapsError(f"images run up to {highest:g}, but must lie in [0, 1]: divide bytes by 255")


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuses anything but one class number per image. Checks their range on the CPU only: a GPU would have to wait."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise MspcapsError(
            f"labels must be class numbers, one per image, not {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type != "cpu" or labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise MspcapsError(f"labels run from {low} to {high}, but there are {classes} classes, numbered from 0")


def check_img_size(img_size: tuple[int, int], smallest: int = 1, why: str = "leaves no capsule") -> None:
    """Refuses an image that is too small for the network."""
    if min(img_size) < smallest:
        size, nearest = (" x ".join(map(str, sides)) for sides in (img_size, [max(n, smallest) for n in img_size]))
        raise MspcapsError(f"an image of {size} pixels {why}: the nearest size that works is {nearest}")


class Normalize(nn.Module):
    """(x - mean) / std per channel, as part of the model, so that attack budgets are in pixel units.

    Refuses bytes, also as floats, a wrong number of channels and, if `img_size` is given, images of another size.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], img_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.img_size = img_size
        # float() first: NumPy scalars would make float64 buffers, which the first convolution refuses
        self.register_buffer("mean", torch.tensor([float(m) for m in mean]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([max(float(s), LEAST_STD) for s in std]).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        check_floating(x)
        chans = len(self.mean)
        if x.ndim != 4 or x.shape[1] != chans or (self.img_size is not None and tuple(x.shape[2:]) != self.img_size):
            expected = " x ".join(str(side) for side in ("N", chans, *(self.img_size or ("H", "W"))))
            actual = " x ".join(str(side) for side in x.shape)
            raise MspcapsError(f"the model takes batches of {expected} (images, channels, height, width), not {actual}")
        check_range(x)
        return (x - self.mean) / self.std


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm2d without its batch counter, which costs a kernel in every step and serves only a cumulative average
    (momentum None, as torch.optim.swa_utils.update_bn sets it). For that case the layer counts batches itself."""

    batches = 0  # since the statistics were reset

    def __init__(self, chans: int) -> None:
        super().__init__(chans)
        self.num_batches_tracked = None

    def reset_running_stats(self) -> None:
        for statistic, start in ((self.running_mean, 0), (self.running_var, 1)):
            if statistic is not None:
                statistic.fill_(start)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.momentum is not None or not self.training:
            return super().forward(x)
        self.batches += 1
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, True, 1 / self.batches, self.eps)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # PyTorch's own adds the counter to a dictionary without version metadata (safetensors) and calls it unexpected.
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # saved by a plain BatchNorm2d; the dictionary is a copy
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)


class ConvBN(nn.Module):
    """Convolution with an odd kernel, then BatchNorm: [b, c, h, w] -> [b, c', ceil(h / stride), ceil(w / stride)]."""

    def __init__(self, in_chans: int, out_chans: int, stride: int = 1, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, out_chans, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = BatchNorm(out_chans)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


def start_like_keras(conv: nn.Conv2d) -> nn.Conv2d:
    """Initialises the weights from Glorot's uniform distribution and the biases with zeros."""
    nn.init.xavier_uniform_(conv.weight)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


def run_block(block: nn.Module, x: Tensor, checkpointing: bool) -> Tensor:
    """Runs a block of a backbone. With checkpointing, the backward pass computes what is inside it again."""
    if not (checkpointing and block.training):
        return block(x)
    if torch.compiler.is_compiling():  # a compiled graph updates buffers in its forward pass only
        return checkpoint(block, x, use_reentrant=False)
    contexts = lambda: (contextlib.nullcontext(), fixed_statistics(block))  # noqa: E731  of the two forward passes
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


@contextlib.contextmanager
def fixed_statistics(block: nn.Module) -> Iterator[None]:
    """Freezes the running statistics of BatchNorm: a forward pass that runs twice must update them once."""
    norms: list[Any] = [m for m in block.modules() if getattr(m, "running_mean", None) is not None]  # of any class
    before = [(norm.momentum, getattr(norm, "num_batches_tracked", None)) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None  # the count of batches is a statistic too
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module into eval mode and, on leaving, even by an exception, back into its own mode.

    `model.train(was_training)` would not do: some modules may have been frozen, or only a wrapper may be in train mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def use_channels_last(model: nn.Module) -> None:
    """Converts the weights of convolutions only: PyTorch's own conversion would also permute the vote weights.

    Inputs need no conversion: the first convolution converts them. On a CPU this is faster for single images; for
    batches of 32 the contiguous layout was faster (results/bench). Weights of one input channel have
    this layout anyway, but only the strides that `empty_like` gives them say so. With other strides the compiler would
    convert the maps of depthwise convolutions back and forth.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            module.weight.data = torch.empty_like(weight, memory_format=torch.channels_last).copy_(weight)


WORD = 0xFFFFFFFF  # 32 bits: times a constant below 2^31 they still fit into int64, whose overflow C++ leaves undefined


class Dropout(nn.Module):
    """Sets a fraction p of all elements to zero in training and scales the rest by 1 / (1 - p).

    The mask is a hash of (key, element number): the same in every engine, on every device and after resuming. The
    training step sets `key` from (seed, epoch, step, layer), and `share` to the rank of the process, which holds that
    part of the batch along the first axis. Your own training loop must set a new `key` before every step.
    """

    key: Tensor

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise MspcapsError(f"the dropout rate is {p}, but must be at least 0 and below 1")
        self.p, self.share = p, 0
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        numbers = torch.arange(x.numel(), device=x.device) + self.share * x.numel()
        hashes = hash_words(self.key, numbers).view(x.shape)  # row by row, whatever the memory layout
        return torch.where(hashes >= round(self.p * 2**32), x / (1 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def hash_words(key: Tensor, numbers: Tensor) -> Tensor:
    """key int64 [1], numbers int64 [n] -> evenly distributed numbers below 2^32, int64 [n]."""
    return _mix(_mix((numbers ^ key) & WORD) ^ ((key >> 32) & WORD))


def dropout_keys(epoch_key: Tensor, step: Tensor, layers: int) -> Tensor:
    """The keys of all Dropout layers of a model in this step: int64 [layers]."""
    numbers = torch.arange(2 * layers, device=step.device)
    low, high = hash_words(hash_words(epoch_key, step) | (epoch_key >> 32 << 32), numbers).view(2, layers)
    return low | (high >> 1) << 32


def _mix(x: Tensor) -> Tensor:
    """The finalizer of a 32-bit hash: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & WORD
    x = (x ^ (x >> 15)) * 0x735A2D97 & WORD
    return x ^ (x >> 15)
