"""What a model costs: parameters, multiply-adds, memory. Measured from the model itself, on the meta device.

The meta device runs every operation on shapes alone, so the largest model takes a fraction of a second and no memory.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mspcaps.models.model import ImageSize, config_of
from mspcaps.models.registry import build_on_meta


@dataclass(frozen=True)
class Summary:
    """The cost of a model at one image size."""

    params: int  # trainable numbers, BatchNorm's scale and shift included, its running statistics not
    macs: int  # multiply-adds of one image's forward pass: flops / 2, matrix products and convolutions only
    memory_bytes_per_image: int  # fp32 activations stored for the backward pass that one more image adds to a batch
    weights_bytes: int  # as stored: parameters in half precision, BatchNorm statistics and the normalisation in fp32


def summarize(
    model: str | nn.Module, num_classes: int = 10, in_chans: int = 3, img_size: ImageSize = 32, **options: Any
) -> Summary:
    """The cost of a registered model at the given sizes, or of a model object at its own sizes."""
    if isinstance(model, str):
        meta: nn.Module = build_on_meta(model, num_classes=num_classes, in_chans=in_chans, img_size=img_size, **options)
    else:
        config_of(model)  # refuses a model without a config before it is copied
        meta = copy.deepcopy(model).to("meta", torch.float32)  # the caller's keeps its device, mode and statistics
    params = sum(p.numel() for p in meta.parameters())
    return Summary(
        params=params,
        macs=count_macs(meta),
        memory_bytes_per_image=memory_per_image(meta),
        weights_bytes=2 * params + sum(b.numel() * b.element_size() for b in meta.buffers()),
    )


def image_shape(model: nn.Module) -> tuple[int, ...]:
    config = config_of(model)
    return config["in_chans"], *config["img_size"]


def memory_per_image(model: nn.Module) -> int:
    """Bytes of activations that one more image adds to a batch, in fp32; `model` is on the meta device."""
    # The difference of two batches, because some tensors, such as BatchNorm's statistics, are stored once per batch.
    # Not of one image: BatchNorm refuses the single value per channel that a map of one pixel would give it.
    larger, smaller = (saved_bytes(model, (batch, *image_shape(model))) for batch in (3, 2))
    return larger - smaller


def count_macs(model: nn.Module) -> int:
    """Multiply-adds of the forward pass of one image, in evaluation mode; `model` is on the meta device."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, which the checks of memory do not need

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.empty(1, *image_shape(model), device="meta"))
    return counter.get_total_flops() // 2


def saved_bytes(model: nn.Module, batch: tuple[int, ...]) -> int:
    """Bytes that autograd stores for the backward pass of a batch [b, c, h, w], parameters excluded."""
    own = {storage_key(t) for t in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}  # keeps them alive, so that no address is used twice

    def pack(saved: Tensor) -> Tensor:
        if storage_key(saved) not in own:
            storages[storage_key(saved)] = saved.untyped_storage()  # one entry for all views of the same memory
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved):
        model.train()(torch.zeros(batch, device=next(model.parameters()).device))
    return sum(storage.nbytes() for storage in storages.values())


def storage_key(tensor: Tensor) -> int:
    """The address of the storage object: on the meta device the data pointer of every tensor is zero."""
    return tensor.untyped_storage()._cdata
