"""Two tasks that train on some poses and test on others, made from published images.

mnist40: MNIST digits placed anywhere on 40 x 40 for training; for testing also rotated, sheared and scaled, in the
ranges of affNIST. dsprites_pose: dSprites with its three shapes as classes, tested on orientations and scales that no
training image has.

Both are the same bytes on every machine, as the catalog's checksums prove: the draws come from the frozen stream of
`RandomState`, and interpolation uses whole numbers.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mspcaps.data.formats import BROKEN
from mspcaps.errors import MspcapsError, as_user_error

SIDE = 40  # pixels of mnist40
ROTATION, SHEAR, SCALE = 20.0, 0.2, (0.8, 1.2)  # as in affNIST: +- degrees, +- shear, factor of each axis
FRACTION = 8  # bits of a coordinate below the pixel

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
SHAPES, SCALES, ORIENTATIONS, POSITIONS = 3, 6, 40, 32 * 32  # the order in which dSprites numbers its images


class Poses(NamedTuple):
    """One split of dsprites_pose: the numbers of its scales and orientations, and how many images of each shape."""

    scales: tuple[int, ...]
    orientations: tuple[int, ...]
    images: int


# A third of the orientations, 0 to 111 degrees, and the smaller scales, 0.5 to 0.7, are for training. The other thirds
# and the larger scales are for testing: halving the images then loses no detail of the unseen poses. Orientation 39 is
# 360 degrees, the same as 0, and is left out.
SPLITS = {
    "train": Poses((0, 1, 2), tuple(range(13)), 10_000),
    "test": Poses((3, 4, 5), tuple(range(13, 39)), 4_000),
}


def make_mnist40(mnist: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """x_*, y_* of MNIST, images uint8 [N, 28, 28] or [N, 1, 28, 28] -> the same of mnist40, [N, 1, 40, 40]."""
    train, test = (mnist[name].reshape(-1, 28, 28) for name in ("x_train", "x_test"))
    places, poses = np.random.RandomState(0), np.random.RandomState(1)
    return {
        "x_train": place_anywhere(train, SIDE, places)[:, None],
        "y_train": mnist["y_train"],
        "x_test": place_anywhere(warp(test, draw_affine(len(test), poses), 56), SIDE, poses)[:, None],
        "y_test": mnist["y_test"],
    }


def draw_affine(n: int, draws: np.random.RandomState) -> np.ndarray:
    """Rotation times shear along the rows times scales of both axes: float64 [n, 2, 2]."""
    angle = np.radians(draws.uniform(-ROTATION, ROTATION, n))
    shear, down, across = draws.uniform(-SHEAR, SHEAR, n), draws.uniform(*SCALE, n), draws.uniform(*SCALE, n)
    cos, sin = np.cos(angle), np.sin(angle)
    # [cos sin; -sin cos] [1 0; shear 1] [down 0; 0 across], on (row, column)
    rows = [(cos + sin * shear) * down, sin * across, (cos * shear - sin) * down, cos * across]
    return np.stack(rows, axis=1).reshape(n, 2, 2)


def warp(images: np.ndarray, matrices: np.ndarray, side: int) -> np.ndarray:
    """Transform every image by its matrix about the centre, onto `side` x `side` pixels: bilinear, black outside.

    images uint8 [n, h, w], matrices [n, 2, 2] from (row, column) to (row, column) -> uint8 [n, side, side]
    """
    (a, b), (c, d) = matrices.transpose(1, 2, 0)
    inverse = np.stack([d, -b, -c, a]) / (a * d - b * c)
    blocks = [
        _warp_block(images[start : start + 1000], inverse[:, start : start + 1000], side)
        for start in range(0, len(images), 1000)
    ]
    return np.concatenate(blocks)


def _warp_block(images: np.ndarray, inverse: np.ndarray, side: int) -> np.ndarray:
    h, w = images.shape[1:]
    row, column = np.arange(side)[:, None] - (side - 1) / 2, np.arange(side)[None] - (side - 1) / 2
    a, b, c, d = inverse[:, :, None, None]
    one = 1 << FRACTION
    # where each pixel comes from, in whole fractions of a pixel: rounded here once, so the rest is exact
    y = np.floor((a * row + b * column + (h - 1) / 2) * one + 0.5).astype(np.int64)
    x = np.floor((c * row + d * column + (w - 1) / 2) * one + 0.5).astype(np.int64)
    top, left, dy, dx = y >> FRACTION, x >> FRACTION, y & (one - 1), x & (one - 1)
    number = np.arange(len(images))[:, None, None]
    total = np.zeros(y.shape, np.int64)
    for i, weight_y in ((0, one - dy), (1, dy)):
        for j, weight_x in ((0, one - dx), (1, dx)):
            inside = (top + i >= 0) & (top + i < h) & (left + j >= 0) & (left + j < w)
            pixels = images[number, (top + i).clip(0, h - 1), (left + j).clip(0, w - 1)]
            total += np.where(inside, pixels, 0) * weight_y * weight_x
    return ((total + (one * one >> 1)) >> (2 * FRACTION)).astype(np.uint8)


def place_anywhere(images: np.ndarray, side: int, draws: np.random.RandomState) -> np.ndarray:
    """Move the ink of each image to a random place where it is all visible: uint8 [n, h, w] -> [n, side, side]."""
    placed = np.zeros((len(images), side, side), np.uint8)
    for image, target, chance in zip(images, placed, draws.uniform(size=(len(images), 2)), strict=True):
        rows, columns = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
        ink = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1][:side, :side]
        top, left = (math.floor(u * (side - length + 1)) for u, length in zip(chance, ink.shape, strict=True))
        target[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return placed


def choose_sprites(split: str) -> np.ndarray:
    """The numbers of a split's images in dSprites, in random order: int64 [3 * images]."""
    draws, poses = np.random.RandomState(list(SPLITS).index(split)), SPLITS[split]
    chosen = []
    for shape in range(SHAPES):
        scale, orientation, position = np.meshgrid(poses.scales, poses.orientations, np.arange(POSITIONS))
        pool = (((shape * SCALES + scale) * ORIENTATIONS + orientation) * POSITIONS + position).ravel()
        chosen.append(pool[draws.permutation(len(pool))[: poses.images]])
    numbers = np.concatenate(chosen)
    return numbers[draws.permutation(len(numbers))]


def make_dsprites_pose(path: Path) -> dict[str, np.ndarray]:
    """dSprites' own .npz -> x_*, y_* of dsprites_pose: images uint8 [N, 1, 32, 32], labels uint8 [N]."""
    numbers = {split: choose_sprites(split) for split in SPLITS}
    images = read_sprites(path, np.concatenate(list(numbers.values())))
    arrays, start = {}, 0
    for split, own in numbers.items():
        arrays[f"x_{split}"] = halve(images[start : start + len(own)])[:, None]
        arrays[f"y_{split}"] = (own // (SCALES * ORIENTATIONS * POSITIONS)).astype(np.uint8)
        start += len(own)
    return arrays


def halve(sprites: np.ndarray) -> np.ndarray:
    """Zeros and ones [n, 64, 64] -> the means of 2 x 2 pixels as grey values, uint8 [n, 32, 32]."""
    n, h, w = sprites.shape
    ones = sprites.reshape(n, h // 2, 2, w // 2, 2).sum((2, 4), dtype=np.int64)
    return ((ones * 255 + 2) // 4).astype(np.uint8)


def read_sprites(path: Path, numbers: np.ndarray) -> np.ndarray:
    """The images with these numbers, uint8 [n, 64, 64] of zeros and ones; all 737,280 at once would take 3 GB."""
    total, block = SHAPES * SCALES * ORIENTATIONS * POSITIONS, POSITIONS
    order = np.argsort(numbers)
    ends = np.searchsorted(numbers[order], np.arange(block, total + 1, block))
    sprites = np.zeros((len(numbers), 64, 64), np.uint8)
    readable = as_user_error(f"cannot read {path} as dSprites", BROKEN)
    with readable, zipfile.ZipFile(path) as archive, archive.open("imgs.npy") as file:
        np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0(file)
        if header != ((total, 64, 64), False, np.dtype(np.uint8)):
            raise MspcapsError(f"{path} is not dSprites: its images are {header[2]} {header[0]}")
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            pixels = np.frombuffer(file.read(block * 64 * 64), np.uint8).reshape(block, 64, 64)
            sprites[order[start:end]] = pixels[numbers[order[start:end]] % block]
    return sprites
