"""Do the patches that the page names matter? Cover only them, and then as many random ones of the same sizes.

A covered pixel shows the mean colour, and the measure is how far the score of the class falls. Every image is its own
control: the standard error is that of the difference from the mean of its random draws. Fine patches are named within
patches that already matter, so their random ones are drawn in the same patches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mspcaps.explanation import Explanation
from mspcaps.explanation.drawing import kind_of
from mspcaps.explanation.geometry import Scale, members
from mspcaps.explanation.heat import mean_image
from mspcaps.explanation.tree import Node
from mspcaps.explanation.tree_drawing import voters_of

DRAWS = 8  # of random patches for every image
INSIDE = ("fine", "fine_agrees")  # groups whose random patches are drawn in the same coarser patches
Named = dict[str, list[Node]]  # group -> its patches in one image


def named_patches(parts: Sequence[Node], root: Node, scales: int) -> Named:
    """The patches that the page outlines in one image, and those its tree names; fewer scales have fewer groups."""
    groups: Named = {"all": list(parts)}
    for node in parts:
        assert node.scale is not None
        groups.setdefault(kind_of(node.scale, scales), []).append(node)
    if "mid" in groups:
        voters = voters_of(root.children[0])  # of the coarse patch that contributes most, in order of contribution
        groups["mid_adds"] = list(voters[: len(groups["mid"])])
    if "fine" in groups:
        below: dict[int, Node] = {}
        for node in root.walk():  # the strongest first: a patch in several windows keeps its largest part
            if node.scale == 1:
                below.setdefault(node.index, strongest_inside(node))
        groups["fine_agrees"] = [below[node.index] for node in groups.get("mid", groups["coarse"])]
    return groups


def strongest_inside(patch: Node) -> Node:
    """The strongest finer patch under this one in the tree that begins inside it; a window is larger than a patch."""
    assert patch.rect is not None
    top, left, bottom, right = patch.rect
    inside = (n for n in patch.children if n.rect and top <= n.rect.top < bottom and left <= n.rect.left < right)
    return next(inside, patch.children[0])


def named_mask(nodes: Sequence[Node], scales: Sequence[Scale]) -> Tensor:
    """bool [H, W]: the pixels of these patches."""
    return mask_of([(scales[node.scale or 0], node.index) for node in nodes])


def random_inside(around: Sequence[Node], scales: Sequence[Scale], generator: torch.Generator) -> Tensor:
    """bool [H, W]: in each of these patches, of the scale above the finest, one fine patch drawn at random."""
    below = members(scales[0].grid, scales[1].grid)  # [k, m]
    places = torch.randint(below.shape[1], (len(around),), generator=generator)
    return mask_of([(scales[0], int(below[node.index, m])) for node, m in zip(around, places, strict=True)])


def random_mask(nodes: Sequence[Node], scales: Sequence[Scale], generator: torch.Generator) -> Tensor:
    """bool [H, W]: as many patches of each scale as `nodes` has, drawn at random without repeating one."""
    patches = []
    for number, scale in enumerate(scales):
        count = len({node.index for node in nodes if node.scale == number})
        patches += [(scale, int(i)) for i in torch.randperm(scale.grid[0] * scale.grid[1], generator=generator)[:count]]
    return mask_of(patches)


def mask_of(patches: Sequence[tuple[Scale, int]]) -> Tensor:
    mask = torch.zeros(patches[0][0].img_size, dtype=torch.bool)
    for scale, index in patches:
        rect = scale.rect(index)
        mask[rect.top : rect.bottom, rect.left : rect.right] = True
    return mask


@torch.no_grad()
def drops(explanation: Explanation, labels: Tensor, seed: int) -> dict[str, Tensor]:
    """How far the score of each image's class falls: for every group [b, 2], its patches and random ones covered."""
    generator = torch.Generator().manual_seed(seed)
    model, scales, x = explanation.model, explanation.scales, explanation.images
    blank, clean = mean_image(model, x), explanation.scores.gather(1, labels[:, None])[:, 0]

    def fall(masks: list[Tensor]) -> Tensor:  # [b]
        covered = torch.where(torch.stack(masks)[:, None].to(x.device), blank, x)
        return (clean - model(covered).gather(1, labels[:, None])[:, 0]).cpu()

    def draw(patches: Named, group: str) -> Tensor:
        if group in INSIDE:
            return random_inside(patches.get("mid", patches["coarse"]), scales, generator)
        return random_mask(patches[group], scales, generator)

    named = [
        named_patches(explanation.parts(i, j), explanation.tree(i, j), len(scales))
        for i, j in enumerate(labels.tolist())
    ]
    result = {}
    for group in named[0]:
        own = fall([named_mask(patches[group], scales) for patches in named])
        draws = [fall([draw(patches, group) for patches in named]) for _ in range(DRAWS)]
        result[group] = torch.stack([own, torch.stack(draws).mean(0)], 1)
    return result
