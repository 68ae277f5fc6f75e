"""`mspcaps.explain(model, x)`: a model's answer for each image, and which patches speak for each class.

Heat maps and scores exist for every model, the state of the routing for models with couplings, and the part-whole tree
for models whose routing leads from patches on a grid to the classes.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from mspcaps.capsules import RoutingState
from mspcaps.errors import MspcapsError
from mspcaps.explanation.geometry import Scale, default_scales, smooth
from mspcaps.explanation.heat import Progress, effects, evidence, mean_image
from mspcaps.explanation.tree import Node, TreeBuilder, WindowTreeBuilder, strongest_parts
from mspcaps.models import Model, as_model, class_names, unwrapped
from mspcaps.models.layers import check_floating, in_eval_mode

Label = int | str | Tensor  # a class by number or name, or one number per image


@dataclass(frozen=True)
class Explanation:
    """The explanation of b images. A class is given as a number, a name, or one number per image [b].

    Effects, heat maps and trees are computed on first use, by the model itself and not by a copy: if it has been
    trained further since, that is an error.
    """

    images: Tensor  # [b, c, h, w] in [0, 1]
    classes: tuple[str, ...]
    scores: Tensor  # [b, K], as the model gives them
    routing: tuple[RoutingState, ...]  # of every block, the last one routes to the classes; empty without couplings
    scales: tuple[Scale, ...]  # of the patches, finest first
    model: Model = field(repr=False)
    progress: Progress = field(default=lambda done, of: None, repr=False)  # large images take minutes

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.images.shape[1:])
        return f"Explanation({len(self.images):,} images of {shape}, {len(self.classes)} classes, {self.routing})"

    def _repr_html_(self) -> str:
        from mspcaps.explanation.notebook import explanation_html

        return explanation_html(self)

    @cached_property
    def presence(self) -> Tensor:
        """[b, K] in [0, 1]: the length of each class capsule; for a model that gives logits, their softmax."""
        return self.scores if self.model.scores == "lengths" else self.scores.softmax(1)

    @cached_property
    def ranking(self) -> Tensor:
        """int64 [b, K]: classes from the winner down; column 1 is the runner-up."""
        return self.scores.argsort(1, descending=True)

    @cached_property
    @torch.no_grad()
    def blank_evidence(self) -> Tensor:
        """[K]: the evidence for each class in a blank image, all of the mean colour."""
        with in_eval_mode(self.model):
            return evidence(self.model, self.model(mean_image(self.model, self.images[:1])))[0]

    @cached_property
    def evidence(self) -> Tensor:
        """[b, K]: the evidence for each class, which is that in a blank image plus the effects of a scale (heat.py)."""
        return evidence(self.model, self.scores)

    @cached_property
    @torch.no_grad()
    def all_effects(self) -> list[Tensor]:
        """[b, n_i, K] for every scale, finest first, computed once for all classes (heat.py)."""
        with in_eval_mode(self.model):
            if not torch.allclose(self.model(self.images), self.scores, rtol=1e-3, atol=1e-4):
                raise MspcapsError("the model has changed since it was explained: call explain again")
            return effects(self.model, self.images, self.scales, progress=self.progress)

    @property
    def has_tree(self) -> bool:
        """Whether the routing leads from the classes back to patches: patches lie on grids, and every block records
        which fine capsules belong to which coarse one."""
        if self.in_windows:
            return len(self.routing) == len(self.scales)
        traceable = all(state.fine_agreements is not None and state.grids is not None for state in self.routing)
        on_grids = bool(self.model.patch_grids()) and len(self.routing) == max(1, len(self.scales) - 1)
        return traceable and on_grids

    @property
    def in_windows(self) -> bool:
        """Whether every capsule has a place, and parts count only for wholes whose window they lie in."""
        return bool(self.routing[:-1]) and all(state.members is not None for state in self.routing[:-1])

    def label_numbers(self, label: Label) -> Tensor:
        """int64 [b]"""
        if isinstance(label, str):
            if label not in self.classes:
                raise MspcapsError(f"there is no class {label!r}; the classes are {', '.join(self.classes)}")
            label = self.classes.index(label)
        numbers = torch.as_tensor(label, device=self.scores.device).long().expand(len(self.images))
        if bool((numbers < 0).any()) or bool((numbers >= len(self.classes)).any()):
            raise MspcapsError(f"classes are numbered 0 to {len(self.classes) - 1}, not {numbers.tolist()}")
        return numbers

    def effects(self, label: Label) -> list[Tensor]:
        """[b, n_i] for every scale, finest first: what uncovering each patch adds to the evidence for the class.

        At every scale they add up to the evidence in the image minus that in a blank one.
        """
        images, numbers = torch.arange(len(self.images)), self.label_numbers(label)
        return [value[images, :, numbers] for value in self.all_effects]

    def heat_map(self, label: Label) -> Tensor:
        """[b, H, W]: each effect spread evenly over the pixels of its patch, averaged over the scales.

        It adds up to the same sum as the effects of a scale; it is negative where a patch speaks against the class.
        """
        maps = [scale.spread(value) for scale, value in zip(self.scales, self.effects(label), strict=True)]
        return torch.stack(maps).mean(0)

    def drawn_map(self, label: Label) -> Tensor:
        """[b, H, W]: the heat map as pages show it, smoothed to hide the edges of patches."""
        return smooth(self.heat_map(label), self.scales[0].cell)

    def tree(self, image: int = 0, label: int | str | None = None) -> Node:
        """The part-whole tree of one image, for the predicted class unless `label` names another."""
        if not self.has_tree:
            name = self.model.config["name"]
            raise MspcapsError(f"{name} has no part-whole tree: its routing cannot be followed back to patches")
        number = self.class_number(image, label)
        effects = [value[image, :, number] for value in self.all_effects]
        builder = WindowTreeBuilder if self.in_windows else TreeBuilder
        return builder(self.routing, self.scales, effects, image).tree(number)

    def parts(self, image: int = 0, label: int | str | None = None) -> list[Node]:
        """The patches with the most heat on the drawn map, coarse to fine, which the page outlines."""
        heat = self.drawn_map(self.class_number(image, label))[image, None]
        return strongest_parts([scale.gather(heat)[0] for scale in self.scales], self.scales)

    def class_number(self, image: int, label: int | str | None) -> int:
        """The number of the class asked for, or of the predicted class."""
        if not -len(self.images) <= image < len(self.images):
            raise MspcapsError(f"images are numbered 0 to {len(self.images) - 1}, not {image}")
        return int(self.ranking[image, 0]) if label is None else int(self.label_numbers(label)[image])


@torch.no_grad()
def explain(model: nn.Module | str | Path, x: Tensor, progress: Progress = lambda done, of: None) -> Explanation:
    """Explain the model's answers for images in [0, 1], [b, c, h, w]. The model stays unchanged.

    `model` may be a weights file or the name of shipped weights.
    """
    inner = unwrapped(as_model(model))
    if not isinstance(inner, Model):
        raise MspcapsError(f"a {type(inner).__name__} cannot be explained: use a model from create_model or load_model")
    classes, x = class_names(inner), check_images(inner, x).to(next(inner.parameters()).device)
    img_size = (x.shape[2], x.shape[3])
    scales = [Scale(cell, grid, img_size) for cell, grid in inner.patch_grids()] or default_scales(img_size)
    with in_eval_mode(inner):  # BatchNorm must not mix images of a batch, nor learn from them
        scores, routing = inner(x), inner.routing_state(x)
    return Explanation(x, classes, scores, tuple(routing), tuple(scales), inner, progress)


def check_images(model: Model, x: Tensor) -> Tensor:
    """Refuse unsuitable images with a clear message instead of a shape error from deep inside."""
    check_floating(x)
    if x.ndim != 4 or len(x) == 0:
        raise MspcapsError(f"images must have the shape [b, c, h, w] with b at least 1, not {tuple(x.shape)}")
    if x.shape[1:] != (shape := (model.in_chans, *model.img_size)):
        expected, actual = (" x ".join(map(str, sides)) for sides in (shape, x.shape[1:]))
        name = model.config["name"]
        raise MspcapsError(f"{name} takes images of {expected} (channels, height, width), not {actual}")
    if not (bool((x >= 0).all()) and bool((x <= 1).all())):  # also refuses NaN
        raise MspcapsError("images must hold numbers in [0, 1], but some are outside this range or NaN")
    return x
