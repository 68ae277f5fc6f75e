"""Whether a run fits into memory, known before anything is allocated: a killed process cannot say why."""

from bisect import bisect
from dataclasses import dataclass, replace
from typing import Any

import torch

from mspcaps.errors import MspcapsError
from mspcaps.files import format_bytes
from mspcaps.models.summary import build_on_meta, memory_per_image
from mspcaps.training.device import free_bytes, working_precision
from mspcaps.training.optimizers import RULES
from mspcaps.training.recipe import Recipe

MIN_BATCH = 2  # BatchNorm needs two images
WORKSPACE = 2  # a step takes about twice what it keeps for its backward pass, by what processes of five models took
STEP = 32  # pixels between the image sizes that are advised


@dataclass(frozen=True)
class Need:
    """Bytes that training takes: whatever the batch, and for every image of it."""

    fixed: int
    per_image: int


def training_need(recipe: Recipe, device: torch.device, task: dict[str, Any]) -> Need:
    """Of the model, its gradients, the optimizer and the activations. `task` has num_classes, in_chans and img_size."""
    twin = build_on_meta(recipe.model, **task, **recipe.options)
    params = sum(p.numel() for p in twin.parameters())
    # weights, gradients as they come and flat, what the optimizer keeps, the average of the weights
    copies = 3 + len(RULES[recipe.optimizer][1]) + (recipe.ema > 0)
    half = working_precision(device, recipe.precision) is not None
    return Need(fixed=4 * copies * params, per_image=WORKSPACE * memory_per_image(twin) // (2 if half else 1))


def check_memory(
    recipe: Recipe, device: torch.device, num_classes: int, in_chans: int, size: tuple[int, int], images: int,
    processes: int = 1,
) -> None:  # fmt: skip
    """Refuses what cannot fit, with the largest batch or image size that does; `images` are kept on the device. Of
    several `processes` on GPUs each has a share of the batch and a memory of its own."""
    free, task = free_bytes(device), {"num_classes": num_classes, "in_chans": in_chans}
    shares = processes if device.type == "cuda" else 1

    def total(side: int | tuple[int, int]) -> tuple[Need, int]:
        need = training_need(recipe, device, task | {"img_size": side})
        height, width = (side, side) if isinstance(side, int) else side
        fixed = need.fixed + images * in_chans * height * width
        return replace(need, fixed=fixed), fixed + recipe.batch_size // shares * need.per_image

    need, bytes_ = total(size)
    if bytes_ <= free:
        return
    what = (
        f"training {recipe.model} on images of {size[0]}x{size[1]} pixels in batches of {recipe.batch_size} takes "
        f"about {format_bytes(bytes_)}{f' on each of {shares} GPUs' if shares > 1 else ''}, but {format_bytes(free)} "
        f"are free on the {device.type}"
    )
    fitting = (free - need.fixed) // max(1, need.per_image)
    if fitting >= MIN_BATCH:
        raise MspcapsError(f"{what}: choose a batch_size of at most {shares << (fitting.bit_length() - 1)}")
    # Sides that are multiples of STEP; need grows with the side.
    steps = bisect(range(1, (min(size) - 1) // STEP + 1), free, key=lambda step: total(STEP * step)[1])
    raise MspcapsError(f"{what}: choose " + (f"an img_size of at most {STEP * steps}" if steps else "a smaller model"))
