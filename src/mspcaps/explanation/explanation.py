"""`mspcaps.explain(model, x)`: what the routing did with each image, and what that says about each class."""

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from mspcaps.capsules import CrossAgreementRouting, length, squash
from mspcaps.errors import MspcapsError
from mspcaps.explanation.blocks import Block, run_routing
from mspcaps.explanation.geometry import Scale
from mspcaps.explanation.heat import Progress, class_norms, effects
from mspcaps.explanation.tree import Node, TreeBuilder
from mspcaps.models import as_model, class_names, unwrapped
from mspcaps.models.layers import check_floating
from mspcaps.models.mspcaps import MSPCaps

Label = int | str | Tensor  # a class by number or name, or one number per image


@dataclass(frozen=True)
class Explanation:
    """The explanation of b images. A class is given as a number, a name, or one number per image [b].

    blocks[-1] routes to the classes; with three scales, blocks[0] routes to the middle capsules. Each has agreements
    [k, b, m, j], couplings [k, b, j] and contributions [k, b, j].
    """

    images: Tensor  # [b, c, h, w] in [0, 1]
    classes: tuple[str, ...]
    scales: tuple[Scale, ...]  # finest first
    blocks: tuple[Block, ...]
    model: MSPCaps  # a copy: effects are found when asked for, and training may go on meanwhile
    progress: Progress = lambda done, of: None  # hears of the search for effects, which takes minutes for large images

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.images.shape[1:])
        return f"Explanation({len(self.images):,} images of {shape}, {len(self.classes)} classes, blocks={self.blocks})"

    @cached_property
    def lengths(self) -> Tensor:
        """[b, K]: the class scores."""
        return length(squash(self.blocks[-1].sums))

    @cached_property
    def ranking(self) -> Tensor:
        """int64 [b, K]: classes from the winner down; column 1 is the runner-up."""
        return self.lengths.argsort(1, descending=True)

    @cached_property
    def blank_norms(self) -> Tensor:
        """[K]: lengths of the class capsules before squash for a blank image, all of the mean colour."""
        return class_norms(self.model, self.model.normalize.mean.expand_as(self.images[:1]))[0]

    @cached_property
    def all_effects(self) -> list[Tensor]:
        """[b, n_i, K] of every scale, finest first, found once for all classes (explain/heat.py)."""
        return effects(self.model, self.images, self.scales, progress=self.progress)

    def label_numbers(self, label: Label) -> Tensor:
        """int64 [b]"""
        if isinstance(label, str):
            if label not in self.classes:
                raise MspcapsError(f"there is no class {label!r}; the classes are {', '.join(self.classes)}")
            label = self.classes.index(label)
        numbers = torch.as_tensor(label, device=self.lengths.device).long().expand(len(self.images))
        if bool((numbers < 0).any()) or bool((numbers >= len(self.classes)).any()):
            raise MspcapsError(f"classes are numbered 0 to {len(self.classes) - 1}, not {numbers.tolist()}")
        return numbers

    def effects(self, label: Label) -> list[Tensor]:
        """[b, n_i] of every scale, finest first: what uncovering each patch adds to |s_j| (explain/heat.py).

        At every scale they add up to the length of the class capsule before squash minus that of a blank image.
        """
        images, numbers = torch.arange(len(self.images)), self.label_numbers(label)
        return [value[images, :, numbers] for value in self.all_effects]

    def heat_map(self, label: Label) -> Tensor:
        """[b, H, W]: each effect spread evenly over the pixels of its patch, averaged over the scales.

        Its sum is that of the effects of a scale; it is negative where a patch speaks against the class.
        """
        maps = [scale.spread(value) for scale, value in zip(self.scales, self.effects(label), strict=True)]
        return torch.stack(maps).mean(0)

    def tree(self, image: int = 0, label: int | str | None = None) -> Node:
        """The part-whole tree of one image, for the predicted class unless `label` names another."""
        number = self.number_of(image, label)
        return self.grower(image, number).tree(number)

    def parts(self, image: int = 0, label: int | str | None = None) -> list[Node]:
        """The patches with the largest effects on the class, coarse to fine: what the page outlines."""
        return self.grower(image, self.number_of(image, label)).parts()

    def number_of(self, image: int, label: int | str | None) -> int:
        """The number of the class asked for, or of the predicted class."""
        if not -len(self.images) <= image < len(self.images):
            raise MspcapsError(f"images are numbered 0 to {len(self.images) - 1}, not {image}")
        return int(self.ranking[image, 0]) if label is None else int(self.label_numbers(label)[image])

    def grower(self, image: int, number: int) -> TreeBuilder:
        found = [value[image, :, number] for value in self.all_effects]
        return TreeBuilder(list(self.model.routing), self.blocks, self.scales, found, image)


@torch.no_grad()
def explain(model: nn.Module | str | Path, x: Tensor, progress: Progress = lambda done, of: None) -> Explanation:
    """Explain the model's answers for images in [0, 1], [b, c, h, w]. The model itself is left unchanged.

    `model` may be a weights file or the name of shipped weights.
    """
    # BatchNorm must not mix images of a batch, nor learn from them
    frozen = copy.deepcopy(explainable(as_model(model))).eval()
    x = checked(frozen, x).to(next(frozen.parameters()).device)
    blocks = run_routing(list(frozen.routing), frozen.forward_features(x))
    img_size = (x.shape[2], x.shape[3])
    scales = tuple(Scale(cell, grid, img_size) for cell, grid in frozen.patch_grids())
    count = blocks[-1].couplings.shape[2]
    names = class_names(frozen) if hasattr(frozen, "config") else tuple(map(str, range(count)))
    return Explanation(x, names, scales, blocks, frozen, progress)


def explainable(model: nn.Module) -> MSPCaps:
    """The model, if it routes by cross-agreement."""
    model = unwrapped(model)
    config = getattr(model, "config", None)
    name = config["name"] if isinstance(config, dict) else type(model).__name__
    if not isinstance(model, MSPCaps):
        raise MspcapsError(
            f"{name} cannot be explained: explanations follow cross-agreement routing, which it does not have"
        )
    if not len(model.routing) or any(type(routing) is not CrossAgreementRouting for routing in model.routing):
        raise MspcapsError(
            f"{name} cannot be explained: explanations follow cross-agreement routing, as in mspcaps_t, but it has "
            "something else in its place"
        )
    return model


def checked(model: MSPCaps, x: Tensor) -> Tensor:
    """A sentence instead of a shape error from deep inside."""
    config = getattr(model, "config", None)
    check_floating(x)
    if x.ndim != 4 or len(x) == 0:
        raise MspcapsError(f"images must have the shape [b, c, h, w] with b at least 1, not {tuple(x.shape)}")
    if isinstance(config, dict) and tuple(x.shape[1:]) != (config["in_chans"], *config["img_size"]):
        wanted = " x ".join(str(side) for side in (config["in_chans"], *config["img_size"]))
        got = " x ".join(str(side) for side in x.shape[1:])
        raise MspcapsError(f"{config['name']} takes images of {wanted} (channels, height, width), not {got}")
    if not (bool((x >= 0).all()) and bool((x <= 1).all())):  # also refuses what is not a number
        raise MspcapsError("images must hold numbers in [0, 1], but some are outside this range or NaN")
    return x
