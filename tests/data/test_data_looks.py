"""Alternating flip, cutout, colour and sharpness against plain loops over one pixel at a time, in NumPy."""

from collections import Counter

import numpy as np
import pytest
import torch

from mspcaps.data.augment import augment_images, epoch_draws, epoch_order, move_images
from mspcaps.data.catalog import Augmentation
from mspcaps.errors import MspcapsError

EVERYTHING = Augmentation(2, True, 10.0, cutout=3, colour=0.5, sharpness=0.8)


def one_image(image: np.ndarray, draw: list[float], augment: Augmentation) -> np.ndarray:
    """[c, h, w] in [0, 1], already moved -> the same after colour, sharpness and cutout, in double precision."""
    image = image.copy()
    c, h, w = image.shape
    weights = (0.299, 0.587, 0.114) if c == 3 else (1 / c,) * c
    if augment.colour:
        brightness, contrast, saturation = draw[6:9]
        image = np.clip(image * brightness, 0, 1)
        mean = sum(weight * channel.mean() for weight, channel in zip(weights, image, strict=True))
        image = np.clip(mean + contrast * (image - mean), 0, 1)
        for y in range(h):
            for x in range(w):
                if c == 3:
                    grey = float(np.dot(weights, image[:, y, x]))
                    image[:, y, x] = np.clip(grey + saturation * (image[:, y, x] - grey), 0, 1)
    if augment.sharpness:
        sharper = np.zeros_like(image)
        for y in range(h):
            for x in range(w):
                blurred = 4 * image[:, y, x]
                for i in (y - 1, y, y + 1):
                    for j in (x - 1, x, x + 1):
                        blurred = blurred + image[:, min(max(i, 0), h - 1), min(max(j, 0), w - 1)]
                blurred = blurred / 13
                sharper[:, y, x] = np.clip(blurred + draw[9] * (image[:, y, x] - blurred), 0, 1)
        image = sharper
    if augment.cutout:
        top, left = int(draw[4] * (h - augment.cutout + 1)), int(draw[5] * (w - augment.cutout + 1))
        image[:, top : top + augment.cutout, left : left + augment.cutout] = 0.5
    return image


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    "augment",
    [Augmentation(cutout=5), Augmentation(colour=0.4), Augmentation(sharpness=1.0), EVERYTHING],
    ids=["cutout", "colour", "sharpness", "everything"],
)
def test_equals_one_pixel_at_a_time(augment: Augmentation, channels: int) -> None:
    generator = torch.Generator().manual_seed(channels)
    images = torch.randint(256, (9, channels, 12, 10), dtype=torch.uint8, generator=generator)
    index, draws = torch.tensor([8, 0, 3, 3, 5]), epoch_draws(7, 2, 5, augment)
    moved = move_images(images, index, draws, augment).double().numpy()
    got = augment_images(images, index, draws, augment)
    want = [one_image(image, draw, augment) for image, draw in zip(moved, draws.tolist(), strict=True)]
    np.testing.assert_allclose(got, np.stack(want), atol=2e-6)
    assert got.dtype == torch.float32 and not np.allclose(got, moved, atol=0.05)


def test_none_of_them_changes_the_draws_of_another() -> None:
    """So crops, flips and angles are the same with and without colours."""
    plain = epoch_draws(3, 4, 50, Augmentation(2, True, 10.0))
    assert plain.shape == (50, 4) and torch.equal(epoch_draws(3, 4, 50, EVERYTHING)[:, :4], plain)
    for field, columns in {"cutout": [4, 5], "colour": [6, 7, 8], "sharpness": [9], "mixup": [10]}.items():
        alone = epoch_draws(3, 4, 50, Augmentation(**{field: 1}))  # type: ignore[arg-type]
        together = epoch_draws(3, 4, 50, Augmentation(4, True, 5.0, True, 1, 1.0, 1.0, 1.0))
        assert torch.equal(alone[:, columns], together[:, columns]) and alone[:, columns].unique().numel() > 40
        assert not alone[:, [column for column in range(11) if column not in columns]].any()


def test_draws_lie_evenly_in_their_ranges() -> None:
    n = 20_000
    draws = epoch_draws(1, 0, n, Augmentation(cutout=8, colour=0.3, sharpness=0.5, mixup=0.2)).double().numpy()
    for column, low, high in ((4, 0, 1), (5, 0, 1), (6, 0.7, 1.3), (7, 0.7, 1.3), (8, 0.7, 1.3), (9, 0.5, 1.5)):
        counts, _ = np.histogram(draws[:, column], bins=20, range=(low, high))
        assert counts.sum() == n and np.abs(counts - n / 20).max() < 5 * np.sqrt(n / 20), column
    share = draws[:, 10]  # Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1))
    assert share.min() >= 0 and share.max() <= 1 and abs(share.mean() - 0.5) < 0.01
    assert share.var() == pytest.approx(1 / (4 * 1.4), rel=0.02)


def test_the_square_is_whole_and_everywhere() -> None:
    """Every position at which it is all inside the image is equally likely."""
    augment = Augmentation(cutout=6)
    images, n = torch.zeros(1, 1, 8, 7, dtype=torch.uint8), 6000
    got = augment_images(images, torch.zeros(n, dtype=torch.int64), epoch_draws(0, 0, n, augment), augment)
    assert (got.sum((1, 2, 3)) == 0.5 * 36).all()
    places = Counter((int(image[0].amax(1).argmax()), int(image[0].amax(0).argmax())) for image in got)
    assert set(places) == {(y, x) for y in range(3) for x in range(2)}
    assert max(abs(count - 1000) for count in places.values()) < 150


@pytest.mark.parametrize("n", [1, 40])
def test_an_alternating_flip_shows_every_image_from_both_sides_in_turn(n: int) -> None:
    sides = []
    for epoch in range(6):
        order = epoch_order(5, epoch, n)
        draws = epoch_draws(5, epoch, n, Augmentation(flip=True, alternate_flip=True), order)
        side = {int(image): draws[place, 2].item() for place, image in enumerate(order)}
        sides.append([side[image] for image in range(n)])
    first = sides[0]
    assert n == 1 or 8 < sum(first) < 32
    for epoch, now in enumerate(sides):
        assert now == [side if epoch % 2 == 0 else 1 - side for side in first]


def test_images_that_are_drawn_twice_or_never_take_the_side_of_their_image() -> None:
    """As in a balanced order."""
    augment, order = Augmentation(flip=True, alternate_flip=True), torch.tensor([3, 3, 0, 3, 1])
    whole = epoch_draws(2, 0, 8, augment, torch.arange(8))[:, 2]
    assert torch.equal(epoch_draws(2, 0, 8, augment, order)[:5, 2], whole[order])


@pytest.mark.parametrize(
    "values",
    [
        {"cutout": -1}, {"colour": -0.1}, {"colour": 1.5}, {"sharpness": 2.0}, {"sharpness": float("nan")},
        {"mixup": float("inf")},
    ],
)  # fmt: skip
def test_bad_values_are_refused(values: dict[str, float]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(MspcapsError, match=rf"augment\.{name} is {value}"):
        Augmentation(**values)  # type: ignore[arg-type]


def test_an_alternating_flip_needs_a_flip() -> None:
    with pytest.raises(MspcapsError, match=r"augment\.flip"):
        Augmentation(alternate_flip=True)
