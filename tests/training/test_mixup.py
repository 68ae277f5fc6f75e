"""Mixup against a loop over one image at a time."""

import numpy as np
import pytest
import torch

from mspcaps.data import Augmentation, ImageSet
from mspcaps.data.augment import augment_images
from mspcaps.errors import MspcapsError
from mspcaps.training.loader import Loader, take_batch


def make(batch: int, augment: Augmentation, rank: int = 0, world: int = 1) -> Loader:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (33, 3, 8, 8), dtype=torch.uint8, generator=generator)
    loader = Loader(ImageSet(images, torch.arange(33) % 4, tuple("abcd"), "x"), batch, augment, 3, rank, world)
    loader.begin(2, step=1)
    return loader


@pytest.mark.parametrize("batch", [8, 7])
def test_pairs_are_mixed_and_so_are_their_labels(batch: int) -> None:
    augment = Augmentation(2, True, cutout=3, mixup=0.8)
    loader = make(batch, augment)
    x, y = take_batch(loader)
    index, draws = loader.order[1], loader.draws[1]
    plain, labels = augment_images(loader.images, index, draws, augment).numpy(), loader.labels[index].tolist()
    for i in range(batch):
        other = i + 1 if i % 2 == 0 else i - 1
        other = i if other == batch else other
        share, target = draws[i, 10].item(), np.zeros(4)
        target[labels[i]] += share
        target[labels[other]] += 1 - share
        np.testing.assert_allclose(y[i], target, atol=1e-6)
        np.testing.assert_allclose(x[i], share * plain[i] + (1 - share) * plain[other], atol=1e-6)
    assert y.dtype == torch.float32 and ((y > 0.01).sum(1) == 2).any()


def test_two_processes_mix_the_pairs_of_one() -> None:
    augment = Augmentation(mixup=0.8)
    whole, parts = take_batch(make(8, augment)), [take_batch(make(8, augment, rank, 2)) for rank in (0, 1)]
    for one, *both in zip(whole, *parts, strict=True):
        assert torch.equal(one, torch.cat(both))


@pytest.mark.parametrize(("batch", "world", "fitting"), [(6, 2, 8), (8, 8, 16), (4, 4, 8)])
def test_a_share_that_does_not_come_in_pairs_is_refused(batch: int, world: int, fitting: int) -> None:
    """One process would mix pairs that two cannot, and with one image per process nothing would be mixed."""
    with pytest.raises(MspcapsError, match=rf" {batch} .* {world} .* {fitting}$"):
        make(batch, Augmentation(mixup=0.8), 0, world)
    make(batch, Augmentation(), 0, world)
    make(fitting, Augmentation(mixup=0.8), 0, world)


def test_labels_stay_class_numbers_without_it() -> None:
    assert take_batch(make(8, Augmentation(2, cutout=3)))[1].dtype == torch.int64
