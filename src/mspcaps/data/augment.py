"""Random crop, flip, rotation, colour, sharpness and cutout of a whole batch at once, on the device of the images.

Each image has its own draw. The draws of an epoch depend on (seed, epoch) alone and are made on the CPU, so every
device and every resumed run sees the same ones.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.data.catalog import Augmentation
from mspcaps.data.pictures import LUMA

DRAWS = 4  # columns of a draw: row offset, column offset, flip, angle
MORE_DRAWS = 11  # then: position of the square (2), brightness, contrast, saturation, sharpness, share in mixup
GREY = 0.5  # of the square


def seed_for(*key: object) -> int:
    """32 bits that depend on the key alone: PyTorch's CPU generator ignores the rest of a seed."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, key)).encode()).digest()[:4], "little")


def generator_for(*key: object) -> torch.Generator:
    """A CPU generator whose seed depends on the key alone."""
    return torch.Generator().manual_seed(seed_for(*key))


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """The order of the n images in this epoch: int64 [n]."""
    return torch.randperm(n, generator=generator_for("order", seed, epoch))


def balanced_order(seed: int, epoch: int, labels: Tensor, count: int) -> Tensor:
    """`count` images for this epoch, equally many of each class: int64 [count]; labels int64 [n] on the CPU.

    From a class with more images than its share, each epoch draws a different part, none of them twice; in a smaller
    class every image is drawn equally often, to within one. If the shares are not whole, random classes get one more.
    """
    generator = generator_for("balanced order", seed, epoch)
    sizes = labels.unique(return_counts=True)[1].tolist()
    more = set(torch.randperm(len(sizes), generator=generator)[: count % len(sizes)].tolist())
    drawn = []
    for number, members in enumerate(labels.argsort(stable=True).split(sizes)):
        share = count // len(sizes) + (number in more)
        rest = torch.randperm(len(members), generator=generator)[: share % len(members)]
        drawn += [members.repeat(share // len(members)), members[rest]]
    return torch.cat(drawn)[torch.randperm(count, generator=generator)]


def draw_columns(augment: Augmentation) -> int:
    """How many columns the draws have: crop, flip and rotation alone need only four."""
    return MORE_DRAWS if augment.cutout or augment.colour or augment.sharpness or augment.mixup else DRAWS


def epoch_draws(seed: int, epoch: int, n: int, augment: Augmentation, order: Tensor | None = None) -> Tensor:
    """One draw for every position of the epoch: float32 [n, draw_columns]; `order` says which image is there.

    Crop, flip and rotation share a generator; every other kind has its own, so that none changes another's draws.
    """
    generator = generator_for("augment", seed, epoch)
    draws = torch.zeros(n, draw_columns(augment))
    if augment.crop:
        draws[:, :2] = torch.randint(2 * augment.crop + 1, (n, 2), generator=generator) - augment.crop
    if augment.flip:
        draws[:, 2] = torch.randint(2, (n,), generator=generator)
    if augment.rotate:
        draws[:, 3] = (torch.rand(n, generator=generator) * 2 - 1) * math.radians(augment.rotate)
    if augment.alternate_flip:
        order = epoch_order(seed, epoch, n) if order is None else order
        first = torch.randint(2, (n,), generator=generator_for("first side", seed))  # each image's side in epoch 0
        draws[: len(order), 2] = ((first[order] + epoch) % 2).float()
    if augment.cutout:
        draws[:, 4:6] = torch.rand(n, 2, generator=generator_for("cutout", seed, epoch))
    if augment.colour:
        colours = torch.rand(n, 3, generator=generator_for("colour", seed, epoch))
        draws[:, 6:9] = 1 + augment.colour * (2 * colours - 1)
    if augment.sharpness:
        sharpness = torch.rand(n, generator=generator_for("sharpness", seed, epoch))
        draws[:, 9] = 1 + augment.sharpness * (2 * sharpness - 1)
    if augment.mixup:
        numpy = np.random.default_rng(seed_for("mixup", seed, epoch))  # PyTorch's Beta reads the global state
        draws[:, 10] = torch.from_numpy(numpy.beta(augment.mixup, augment.mixup, n))
    return draws


def augment_images(images: Tensor, index: Tensor, draws: Tensor, augment: Augmentation) -> Tensor:
    """images uint8 [n, c, h, w], index [b], draws [b, draw_columns] -> float32 [b, c, h, w] in [0, 1].

    First crop, flip and rotation, then colour, then sharpness, and last the square, which is always grey.
    """
    x = move_images(images, index, draws, augment)
    if augment.colour:
        x = change_colour(x, draws[:, 6:9])
    if augment.sharpness:
        x = change_sharpness(x, draws[:, 9])
    return cut_out(x, draws[:, 4:6], augment.cutout) if augment.cutout else x


def change_colour(x: Tensor, factors: Tensor) -> Tensor:
    """x [b, c, h, w], factors [b, 3] of brightness, contrast (about the image's mean grey) and, if there are three
    channels, saturation (about the pixel's grey), applied one after the other and each clipped to [0, 1]."""
    brightness, contrast, saturation = factors.view(-1, 3, 1, 1, 1).unbind(1)
    x = (x * brightness).clamp(0, 1)
    mean = to_grey(x).mean((2, 3), keepdim=True)
    x = (mean + contrast * (x - mean)).clamp(0, 1)
    if x.shape[1] != len(LUMA):
        return x
    grey = to_grey(x)
    return (grey + saturation * (x - grey)).clamp(0, 1)


def to_grey(x: Tensor) -> Tensor:
    """[b, c, h, w] -> [b, 1, h, w]"""
    if x.shape[1] != len(LUMA):
        return x.mean(1, keepdim=True)
    red, green, blue = x.split(1, dim=1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def change_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """x [b, c, h, w], factor [b]: away from the blurred image (above 1) or towards it (below 1), clipped to [0, 1].

    The blurred image is the mean of 3 x 3 pixels, the central one counted five times; edges are repeated.
    """
    around = 9 * F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    blurred = (around + 4 * x) / 13
    return (blurred + factor.view(-1, 1, 1, 1) * (x - blurred)).clamp(0, 1)


def cut_out(x: Tensor, place: Tensor, side: int) -> Tensor:
    """A grey square on every image of x [b, c, h, w]; place [b, 2] is as in `rectangles`."""
    return torch.where(rectangles(place, (side, side), x), GREY, x)


def rectangles(place: Tensor, sides: tuple[int, int], x: Tensor) -> Tensor:
    """Which pixels of each image of x [b, c, h, w] a rectangle covers: bool [b, 1, h, w].

    place [b, 2] in [0, 1) runs over all positions at which the whole rectangle is inside the image.
    """
    inside = []
    for axis, (length, side) in enumerate(zip(x.shape[2:], sides, strict=True)):
        start = (place[:, axis] * (length - side + 1)).floor().clamp(max=length - side).view(-1, 1)
        along = torch.arange(length, device=x.device)
        inside.append((along >= start) & (along < start + side))  # [b, length]
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]


def move_images(images: Tensor, index: Tensor, draws: Tensor, augment: Augmentation) -> Tensor:
    """images uint8 [n, c, h, w], index [b], draws [b, at least DRAWS] -> float32 [b, c, h, w] in [0, 1].

    Crop from the zero-padded image, then flip, then rotate about the centre (bilinear, zeros outside). Written as one
    gather from the whole set, which a compiler fuses with the code that reads the batch.
    """
    c, h, w = images.shape[1:]
    device = images.device
    rows, columns = torch.arange(h, device=device).view(1, h, 1), torch.arange(w, device=device).view(1, 1, w)
    shift_rows, shift_columns = (draws[:, i].long().view(-1, 1, 1) for i in (0, 1))
    flip = draws[:, 2].view(-1, 1, 1) > 0.5
    image, channel = index.view(-1, 1, 1, 1), torch.arange(c, device=device).view(1, c, 1, 1)

    def pixels(row: Tensor, column: Tensor) -> Tensor:
        """Integer coordinates [b, h, w] in the frame of the cropped and flipped image -> values [b, c, h, w]."""
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        if augment.flip:
            column = torch.where(flip, w - 1 - column, column)
        if augment.crop:
            row, column = row + shift_rows, column + shift_columns
            inside = inside & (row >= 0) & (row < h) & (column >= 0) & (column < w)
        values = images[image, channel, row.clamp(0, h - 1).unsqueeze(1), column.clamp(0, w - 1).unsqueeze(1)]
        return torch.where(inside.unsqueeze(1), values.float(), 0.0)

    if not augment.rotate:
        return pixels(rows.expand(len(index), h, w), columns.expand(len(index), h, w)) / 255
    cos, sin = draws[:, 3].cos().view(-1, 1, 1), draws[:, 3].sin().view(-1, 1, 1)
    y, x = rows - (h - 1) / 2, columns - (w - 1) / 2  # from the centre
    y, x = cos * y - sin * x + (h - 1) / 2, sin * y + cos * x + (w - 1) / 2  # where each output pixel comes from
    top, left = y.floor(), x.floor()
    dy, dx = (y - top).unsqueeze(1), (x - left).unsqueeze(1)
    top, left = top.long(), left.long()
    upper = pixels(top, left) * (1 - dx) + pixels(top, left + 1) * dx
    lower = pixels(top + 1, left) * (1 - dx) + pixels(top + 1, left + 1) * dx
    return (upper * (1 - dy) + lower * dy) / 255
