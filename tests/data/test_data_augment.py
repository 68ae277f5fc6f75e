"""Batched augmentation against plain loops over one image at a time."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.data.augment import augment_images, balanced_order, epoch_draws, epoch_order
from mspcaps.data.catalog import Augmentation


def one_image(image: torch.Tensor, draw: list[float], augment: Augmentation) -> torch.Tensor:
    """[c, h, w] -> crop from the padded image, flip, rotate, pixel by pixel."""
    c, h, w = image.shape
    pad = augment.crop
    padded = torch.zeros(c, h + 2 * pad, w + 2 * pad)
    padded[:, pad : pad + h, pad : pad + w] = image.float() / 255
    dy, dx = int(draw[0]) + pad, int(draw[1]) + pad
    frame = padded[:, dy : dy + h, dx : dx + w]
    if draw[2]:
        frame = frame.flip(2)
    if not augment.rotate:
        return frame
    out = torch.zeros_like(frame)
    for y in range(h):
        for x in range(w):
            v, u = y - (h - 1) / 2, x - (w - 1) / 2
            sy = math.cos(draw[3]) * v - math.sin(draw[3]) * u + (h - 1) / 2
            sx = math.sin(draw[3]) * v + math.cos(draw[3]) * u + (w - 1) / 2
            for i in (math.floor(sy), math.floor(sy) + 1):
                for j in (math.floor(sx), math.floor(sx) + 1):
                    if 0 <= i < h and 0 <= j < w:
                        out[:, y, x] += frame[:, i, j] * (1 - abs(sy - i)) * (1 - abs(sx - j))
    return out


@pytest.mark.parametrize(
    "augment", [Augmentation(), Augmentation(4, True), Augmentation(4, rotate=15), Augmentation(2, True, 40)]
)
def test_equals_one_image_at_a_time(augment: Augmentation) -> None:
    images = torch.randint(256, (9, 3, 12, 10), dtype=torch.uint8)
    index = torch.tensor([8, 0, 3, 3, 5])
    draws = epoch_draws(7, 2, 5, augment)
    got = augment_images(images, index, draws, augment)
    want = torch.stack([one_image(images[i], draw, augment) for i, draw in zip(index, draws.tolist(), strict=True)])
    assert torch.allclose(got, want, atol=1e-5)


def test_draws_are_spread_evenly_and_new_in_every_epoch() -> None:
    n = 16_200
    draws = epoch_draws(3, 0, n, Augmentation(crop=4, flip=True, rotate=15.0))
    shifts = Counter(map(tuple, draws[:, :2].int().tolist()))
    assert set(shifts) == {(y, x) for y in range(-4, 5) for x in range(-4, 5)}
    assert max(abs(count - n / 81) for count in shifts.values()) < 6 * math.sqrt(n / 81)
    assert abs(draws[:, 2].mean().item() - 0.5) < 3 / math.sqrt(n)
    degrees = draws[:, 3] * 180 / math.pi
    assert abs(degrees.mean().item()) < 0.4 and degrees.min() < -14.9 and degrees.max() > 14.9
    again = epoch_draws(3, 1, n, Augmentation(crop=4, flip=True, rotate=15.0))
    assert [round((a == b).float().mean().item(), 1) for a, b in zip(draws.T, again.T, strict=True)] == [
        0.1,
        0.1,
        0.5,
        0,
    ]


def test_a_quarter_turn_is_exact() -> None:
    images = torch.randint(256, (1, 2, 7, 7), dtype=torch.uint8)
    draws = torch.tensor([[0, 0, 0, math.pi / 2]])
    got = augment_images(images, torch.tensor([0]), draws, Augmentation(rotate=90))
    assert torch.allclose(got[0] * 255, torch.rot90(images[0].float(), -1, (1, 2)), atol=1e-2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.booleans(), st.floats(0, 30), st.integers(0, 2**40), st.integers(0, 500))
def test_draws_stay_in_their_range(crop: int, flip: bool, rotate: float, seed: int, epoch: int) -> None:
    draws = epoch_draws(seed, epoch, 200, Augmentation(crop, flip, rotate))
    assert draws[:, :2].abs().max() <= crop and draws[:, 3].abs().max() <= math.radians(rotate) + 1e-6
    assert set(draws[:, 2].tolist()) <= ({0.0, 1.0} if flip else {0.0})
    assert torch.equal(draws, epoch_draws(seed, epoch, 200, Augmentation(crop, flip, rotate)))


def test_every_image_has_its_own_draw_and_every_epoch_its_own_order() -> None:
    draws = epoch_draws(0, 0, 1000, Augmentation(4, True, 15))
    assert len(draws.unique(dim=0)) == 1000
    other = epoch_draws(1, 0, 1000, Augmentation(4, True, 15))
    assert (draws[:, 3] == other[:, 3]).sum() < 10, "another seed, other draws"
    assert sorted(epoch_order(0, 0, 50).tolist()) == list(range(50))
    orders = {tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), st.integers(0, 300), st.integers(0, 9))
def test_a_balanced_order_draws_every_class_equally_often(sizes: list[int], count: int, epoch: int) -> None:
    """Counted one by one; a class of no images at all takes no share."""
    labels = torch.tensor([label for label, size in enumerate(sizes) for _ in range(size)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))]
    order = balanced_order(5, epoch, labels, count)
    assert order.dtype == torch.int64 and len(order) == count
    of_class = Counter(int(labels[i]) for i in order)
    shares = [of_class[label] for label, size in enumerate(sizes) if size]
    assert sum(shares) == count and max(shares) - min(shares) <= 1
    of_image = Counter(order.tolist())
    for label, size in enumerate(sizes):
        times = [of_image[i] for i in range(len(labels)) if labels[i] == label]
        assert not size or max(times) - min(times) <= 1, "every image of a class equally often, to within one"
    assert torch.equal(order, balanced_order(5, epoch, labels, count))


def test_a_balanced_order_is_another_one_every_epoch_and_mixes_the_classes() -> None:
    labels = torch.tensor([0] * 900 + [1] * 100)
    orders = [balanced_order(seed, epoch, labels, 1000) for seed in range(2) for epoch in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) == 6
    assert len({tuple(sorted(set(order.tolist()))) for order in orders}) == 6, "another part of the large class"
    per_tenth = orders[0].view(10, 100).ge(900).sum(1)
    assert per_tenth.sum() == 500 and per_tenth.min() > 30 and per_tenth.max() < 70
    seen = {i for epoch in range(12) for i in balanced_order(0, epoch, labels, 1000).tolist()}
    assert len(seen) > 995, "over the epochs nearly everything is seen"
