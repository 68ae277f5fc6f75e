"""Do the patches that the page names matter? Cover them and nothing else, and as many random ones of the same sizes.

What is covered shows the mean colour; what is counted is how far the score of the class falls. Every image is its own
control: the difference to the mean of its random draws is what the standard error is about.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mspcaps.explain.drawing import kind_of
from mspcaps.explain.explanation import Explanation
from mspcaps.explain.geometry import Scale
from mspcaps.explain.tree import Node, strongest, strongest_path

DRAWS = 8  # of random patches for every image
NAMES = {
    "all": "all that are outlined on the image",
    "coarse": "the coarse patch with the largest effect",
    "mid": "the middle patches with the largest effects",
    "fine": "the fine patch that agrees most with each",
    "mid_adds": "for comparison: the middle patches that add most to the middle capsule",
}
Named = dict[str, list[Node]]  # group -> its patches in one image


def named_patches(root: Node, scales: int) -> Named:
    """What the page names of one tree, by group; a model with fewer scales has fewer groups."""
    path = strongest_path(root)
    groups: Named = {"all": path}
    for node in path:
        assert node.scale is not None
        groups.setdefault(kind_of(node.scale, scales), []).append(node)
    if "mid" in groups:
        (centre,) = strongest(root.children, 1)[0].children
        groups["mid_adds"] = list(centre.children[: len(groups["mid"])])  # the tree has its children in this order
    return groups


def named_mask(nodes: Sequence[Node], scales: Sequence[Scale]) -> Tensor:
    """bool [H, W]: the pixels of these patches."""
    return mask_of([(scales[node.scale or 0], node.index) for node in nodes])


def random_mask(nodes: Sequence[Node], scales: Sequence[Scale], generator: torch.Generator) -> Tensor:
    """bool [H, W]: as many patches of each scale as `nodes` has, drawn at random without repeating one."""
    drawn = []
    for number, scale in enumerate(scales):
        count = len({node.index for node in nodes if node.scale == number})
        drawn += [(scale, int(i)) for i in torch.randperm(scale.grid[0] * scale.grid[1], generator=generator)[:count]]
    return mask_of(drawn)


def mask_of(patches: Sequence[tuple[Scale, int]]) -> Tensor:
    mask = torch.zeros(patches[0][0].img_size, dtype=torch.bool)
    for scale, index in patches:
        rect = scale.rect(index)
        mask[rect.top : rect.bottom, rect.left : rect.right] = True
    return mask


@torch.no_grad()
def drops(found: Explanation, labels: Tensor, seed: int) -> dict[str, Tensor]:
    """How far the score of each image's class falls -> group: [b, 2], its patches covered and random ones (mean)."""
    generator = torch.Generator().manual_seed(seed)
    x, blank = found.images, found.model.normalize.mean

    def fall(masks: list[Tensor]) -> Tensor:  # [b]
        covered = torch.where(torch.stack(masks)[:, None].to(x.device), blank, x)
        scores = found.model(covered).gather(1, labels[:, None])[:, 0]
        return (found.lengths.gather(1, labels[:, None])[:, 0] - scores).cpu()

    named = [named_patches(found.tree(i, int(label)), len(found.scales)) for i, label in enumerate(labels)]
    result = {}
    for group in named[0]:
        own = fall([named_mask(one[group], found.scales) for one in named])
        draws = [fall([random_mask(one[group], found.scales, generator) for one in named]) for _ in range(DRAWS)]
        result[group] = torch.stack([own, torch.stack(draws).mean(0)], 1)
    return result
