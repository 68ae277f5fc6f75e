"""Random crop, flip and rotation of a whole batch at once, each image with its own draw, on the device of the images.

The draws of an epoch are a function of (seed, epoch) alone and are made on the CPU, so every device and every resumed
run sees the same ones.
"""

import hashlib
import math

import torch
from torch import Tensor

from mspcaps.data.catalog import Augmentation

DRAWS = 4  # columns of a draw: row offset, column offset, flip, angle


def generator_for(*key: object) -> torch.Generator:
    """A CPU generator that depends on the key only."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    # 32 bits: PyTorch's CPU generator ignores the rest of a seed
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """The order of the n images in this epoch: int64 [n]."""
    return torch.randperm(n, generator=generator_for("order", seed, epoch))


def balanced_order(seed: int, epoch: int, labels: Tensor, count: int) -> Tensor:
    """`count` images for this epoch, every class that occurs equally often: int64 [count]; labels int64 [n] on the CPU.

    Of a class with more images than its share each epoch draws another part, none of them twice; of one with fewer
    every image is drawn equally often, to within one. Where shares do not come out even, chance says who gets one more.
    """
    generator = generator_for("balanced order", seed, epoch)
    sizes = labels.unique(return_counts=True)[1].tolist()
    more = set(torch.randperm(len(sizes), generator=generator)[: count % len(sizes)].tolist())
    drawn = []
    for number, own in enumerate(labels.argsort(stable=True).split(sizes)):
        share = count // len(sizes) + (number in more)
        rest = torch.randperm(len(own), generator=generator)[: share % len(own)]
        drawn += [own.repeat(share // len(own)), own[rest]]
    return torch.cat(drawn)[torch.randperm(count, generator=generator)]


def epoch_draws(seed: int, epoch: int, n: int, augment: Augmentation) -> Tensor:
    """One draw for every position of the epoch: float32 [n, DRAWS]."""
    generator = generator_for("augment", seed, epoch)
    draws = torch.zeros(n, DRAWS)
    if augment.crop:
        draws[:, :2] = torch.randint(2 * augment.crop + 1, (n, 2), generator=generator) - augment.crop
    if augment.flip:
        draws[:, 2] = torch.randint(2, (n,), generator=generator)
    if augment.rotate:
        draws[:, 3] = (torch.rand(n, generator=generator) * 2 - 1) * math.radians(augment.rotate)
    return draws


def augment_images(images: Tensor, index: Tensor, draws: Tensor, augment: Augmentation) -> Tensor:
    """images uint8 [n, c, h, w], index [b], draws [b, DRAWS] -> float32 [b, c, h, w] in [0, 1].

    Crop from the zero-padded image, then flip, then rotate about the centre (bilinear, zeros outside). Written as one
    gather from the resident set, so a compiler fuses it with whatever reads the batch.
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
