"""Whether a run fits into memory, checked before anything is allocated: a killed process cannot say why."""

from bisect import bisect
from dataclasses import dataclass, replace
from typing import Any

import torch

from mspcaps.errors import MspcapsError
from mspcaps.files import format_bytes
from mspcaps.models.registry import build_on_meta
from mspcaps.models.summary import memory_per_image
from mspcaps.training.device import free_bytes, working_precision
from mspcaps.training.optimizers import RULES
from mspcaps.training.recipe import Recipe

MIN_BATCH = 2  # BatchNorm needs two images
WORKSPACE = 2  # a step takes about twice what it keeps for its backward pass, measured on five models
STEP = 32  # advised image sizes are multiples of this, in pixels


@dataclass(frozen=True)
class Need:
    """Bytes that training takes: independent of the batch, and per image of it."""

    fixed: int
    per_image: int


def training_need(recipe: Recipe, device: torch.device, task: dict[str, Any]) -> Need:
    """For the model, its gradients, optimizer and activations. `task` has num_classes, in_chans and img_size."""
    twin = build_on_meta(recipe.model, **task, **recipe.options)
    params = sum(p.numel() for p in twin.parameters())
    # weights, gradients, flat gradients, optimizer state, the average of the weights
    copies = 3 + len(RULES[recipe.optimizer][1]) + (recipe.ema > 0)
    half = working_precision(device, recipe.precision) is not None
    passes = 2 if recipe.adversary and recipe.adversary.kind == "trades" else 1  # clean and attacked images
    return Need(4 * copies * params, WORKSPACE * passes * memory_per_image(twin) // (2 if half else 1))


def check_memory(
    recipe: Recipe, device: torch.device, num_classes: int, in_chans: int, size: tuple[int, int], images: int,
    processes: int = 1,
) -> None:  # fmt: skip
    """Refuse what cannot fit, and name the largest batch or image size that does; `images` are kept on the device. Each
    of several `processes` on GPUs has a share of the batch and its own memory."""
    free, task = free_bytes(device), {"num_classes": num_classes, "in_chans": in_chans}
    shares = processes if device.type == "cuda" else 1

    def total(side: int | tuple[int, int]) -> tuple[Need, int]:
        need = training_need(recipe, device, task | {"img_size": side})
        height, width = (side, side) if isinstance(side, int) else side
        fixed = need.fixed + images * in_chans * height * width
        return replace(need, fixed=fixed), fixed + recipe.batch_size // shares * need.per_image

    need, required = total(size)
    if required <= free:
        return
    what = (
        f"training {recipe.model} on images of {size[0]}x{size[1]} pixels in batches of {recipe.batch_size} takes "
        f"about {format_bytes(required)}{f' on each of {shares} GPUs' if shares > 1 else ''}, but only "
        f"{format_bytes(free)} are free on the {device.type}"
    )
    fitting = (free - need.fixed) // max(1, need.per_image)
    if fitting >= MIN_BATCH:
        raise MspcapsError(f"{what}: choose a batch_size of at most {shares << (fitting.bit_length() - 1)}")
    # bisect over multiples of STEP: the larger the side, the more memory it takes
    steps = bisect(range(1, (min(size) - 1) // STEP + 1), free, key=lambda step: total(STEP * step)[1])
    raise MspcapsError(f"{what}: choose " + (f"an img_size of at most {STEP * steps}" if steps else "a smaller model"))
