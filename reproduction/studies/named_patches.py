"""Do the patches that the page names matter? Cover them and nothing else, and as many random ones of the same sizes.

What is covered shows the mean colour; what is counted is how far the score of the class falls. Every image is its own
control: the difference to the mean of its random draws is what the standard error is about. Fine patches are named in
patches that matter already, so their random ones are drawn in the same patches.
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
INSIDE = ("fine", "fine_agrees")  # whose random ones are drawn in the same coarser patches
Named = dict[str, list[Node]]  # group -> its patches in one image


def named_patches(parts: Sequence[Node], root: Node, scales: int) -> Named:
    """What the page outlines in one image, by group, and what its tree names; fewer scales have fewer groups."""
    groups: Named = {"all": list(parts)}
    for node in parts:
        assert node.scale is not None
        groups.setdefault(kind_of(node.scale, scales), []).append(node)
    if "mid" in groups:
        voters = voters_of(root.children[0])  # under the coarse patch that adds most; what adds most comes first
        groups["mid_adds"] = list(voters[: len(groups["mid"])])
    if "fine" in groups:
        below: dict[int, Node] = {}
        for node in root.walk():  # the strongest first: of a patch in several windows its largest part
            if node.scale == 1:
                below.setdefault(node.index, strongest_inside(node))
        groups["fine_agrees"] = [below[node.index] for node in groups.get("mid", groups["coarse"])]
    return groups


def strongest_inside(patch: Node) -> Node:
    """Of the finer patches that the tree has under this one the strongest that begins in it: a window is larger."""
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
    x, blank = found.images, mean_image(found.model, found.images)

    def fall(masks: list[Tensor]) -> Tensor:  # [b]
        covered = torch.where(torch.stack(masks)[:, None].to(x.device), blank, x)
        scores = found.model(covered).gather(1, labels[:, None])[:, 0]
        return (found.scores.gather(1, labels[:, None])[:, 0] - scores).cpu()

    def drawn(one: Named, group: str) -> Tensor:
        if group in INSIDE:
            return random_inside(one.get("mid", one["coarse"]), found.scales, generator)
        return random_mask(one[group], found.scales, generator)

    numbers = [int(label) for label in labels]
    named = [named_patches(found.parts(i, j), found.tree(i, j), len(found.scales)) for i, j in enumerate(numbers)]
    result = {}
    for group in named[0]:
        own = fall([named_mask(one[group], found.scales) for one in named])
        draws = [fall([drawn(one, group) for one in named]) for _ in range(DRAWS)]
        result[group] = torch.stack([own, torch.stack(draws).mean(0)], 1)
    return result
