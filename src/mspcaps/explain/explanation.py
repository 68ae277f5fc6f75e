"""`mspcaps.explain(model, x)`: what the routing did with each image, and what that says about each class."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from mspcaps.capsules import CrossAgreementRouting, length, squash
from mspcaps.errors import MspcapsError
from mspcaps.explain.blocks import Block, run_routing
from mspcaps.explain.geometry import Scale
from mspcaps.explain.heat import contributions, effects
from mspcaps.explain.tree import Grower, Node
from mspcaps.models.mspcaps import MSPCaps

Label = int | str | Tensor  # a class by number or name, or one number per image


@dataclass(frozen=True)
class Explanation:
    """Of a batch of b images. A class is given by its number, its name, or one number per image [b].

    blocks[-1] leads to the classes; with three scales blocks[0] makes the middle capsules. Each has agreements
    [k, b, m, j], couplings [k, b, j] and contributions [k, b, j].
    """

    images: Tensor  # [b, c, h, w] in [0, 1]
    classes: tuple[str, ...]
    scales: tuple[Scale, ...]  # finest first
    blocks: tuple[Block, ...]
    primary: tuple[Tensor, ...]  # capsules [b, n_i, d_i] of every scale
    blank: tuple[Tensor, ...]  # those of an image of the mean colour, [1, n_i, d_i]
    routing: Sequence[nn.Module]

    @cached_property
    def lengths(self) -> Tensor:
        """[b, K]: the class scores."""
        return length(squash(self.blocks[-1].sums))

    @cached_property
    def ranking(self) -> Tensor:
        """int64 [b, K]: classes from the winner down; column 1 is the runner-up."""
        return self.lengths.argsort(1, descending=True)

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
        """[b, n_i] of every scale, finest first: what each patch adds to |s_j| over a blank image (explain/heat.py)."""
        return effects(self.routing, self.primary, self.blank, self.label_numbers(label))

    def contributions(self, label: Label) -> list[Tensor]:
        """[b, n_i] of every scale, finest first: the tree's shares of |s_j| (explain/heat.py)."""
        return contributions(self.routing, self.blocks, self.label_numbers(label), len(self.scales))

    def heat_map(self, label: Label) -> Tensor:
        """[b, H, W]: the effects of all patches of all scales, each spread evenly over its pixels.

        Adds up to the class's length before squash less that of a blank image; negative where a patch speaks against.
        """
        return self.spread(self.effects(label))

    def spread(self, values: Sequence[Tensor]) -> Tensor:
        """Values per patch [b, n_i] of every scale -> [b, H, W] with the same sum."""
        maps = [scale.spread(value) for scale, value in zip(self.scales, values, strict=True)]
        return torch.stack(maps).sum(0)

    def tree(self, image: int = 0, label: int | str | None = None) -> Node:
        """The part-whole tree of one image, of the winner unless another class is named."""
        number = int(self.ranking[image, 0]) if label is None else int(self.label_numbers(label)[image])
        one = [own[image : image + 1] for own in self.primary]
        found = effects(self.routing, one, self.blank, torch.tensor([number], device=one[0].device))
        grower = Grower(self.routing, self.blocks, self.scales, [value[0] for value in found], image)
        return grower.tree(number)


@torch.no_grad()
def explain(model: nn.Module, x: Tensor) -> Explanation:
    """Images in [0, 1], [b, c, h, w] -> their explanation, on the device of the model, whose mode is left as it was."""
    model = explainable(model)
    x = checked(model, x).to(next(model.parameters()).device)
    was_training = model.training
    model.eval()  # BatchNorm must not mix the images of a batch, nor learn from them
    try:
        primary = model.forward_primary(x)
        # The normalisation inside the model knows the mean colour of its data: there a blank image is all zeros.
        blank = model.forward_primary(model.normalize.mean.expand(1, *x.shape[1:]))
    finally:
        model.train(was_training)
    img_size = (x.shape[2], x.shape[3])
    scales = tuple(
        Scale(2**i, model.patch * 2**i, grid, img_size) for i, grid in zip(model.scales, model.grids, strict=True)
    )
    routing = list(copy.deepcopy(model.routing))  # maps and trees are made when asked for: training may go on meanwhile
    blocks = run_routing(routing, primary)
    count = blocks[-1].couplings.shape[2]
    names = getattr(model, "about", {}).get("classes") or [str(label) for label in range(count)]
    return Explanation(x, tuple(names), scales, blocks, tuple(primary), tuple(blank), routing)


def explainable(model: nn.Module) -> MSPCaps:
    """The model, if it routes by cross-agreement."""
    config = getattr(model, "config", None)
    name = config["name"] if isinstance(config, dict) else type(model).__name__
    if not isinstance(model, MSPCaps):
        raise MspcapsError(
            f"{name} cannot be explained: explanations follow the cross-agreement routing of MSPCaps, and it has none"
        )
    if not len(model.routing) or any(type(routing) is not CrossAgreementRouting for routing in model.routing):
        raise MspcapsError(
            f"{name} cannot be explained: explanations follow cross-agreement routing, as in mspcaps_t, and it has "
            "something else in its place"
        )
    return model


def checked(model: MSPCaps, x: Tensor) -> Tensor:
    """A sentence instead of a shape error from deep inside."""
    config = getattr(model, "config", None)
    if not x.is_floating_point():
        raise MspcapsError(f"images must be floating-point numbers in [0, 1], not {x.dtype}: divide bytes by 255")
    if x.ndim != 4 or len(x) == 0:
        raise MspcapsError(f"images must have the shape [b, c, h, w] with b at least 1, not {tuple(x.shape)}")
    if isinstance(config, dict) and tuple(x.shape[1:]) != (config["in_chans"], *config["img_size"]):
        wanted = " x ".join(str(side) for side in (config["in_chans"], *config["img_size"]))
        got = " x ".join(str(side) for side in x.shape[1:])
        raise MspcapsError(f"{config['name']} takes images of {wanted} (channels, height, width), not {got}")
    if not (bool((x >= 0).all()) and bool((x <= 1).all())):  # also refuses what is not a number
        raise MspcapsError("images must hold numbers in [0, 1]; some of these are outside or not numbers")
    return x
