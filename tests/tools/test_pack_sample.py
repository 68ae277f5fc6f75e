"""The embedded sample: the choice of images, the packing, and that it comes from the real data."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mspcaps.data import is_cached, load_dataset
from tools.pack_sample import PER_CLASS, choose, make, mosaic


def test_mosaic_and_choice() -> None:
    images = np.random.default_rng(0).integers(0, 256, (103, 4, 5), np.uint8)
    picture = mosaic(images)
    assert picture.shape == (8, 500)
    assert np.array_equal(picture[4:, 10:15], images[102]) and np.array_equal(picture[:4, 495:], images[99])
    assert picture[4:, 15:].max() == 0
    assert choose(np.array([1, 0, 1, 1, 0, 0]), 2).tolist() == [0, 1, 2, 4]


@pytest.mark.slow
def test_sample_is_made_from_the_real_data(tmp_path: Path) -> None:
    if not is_cached("fashionmnist"):
        pytest.skip("fashionmnist is not cached; `mspcaps data get fashionmnist` fetches it")
    make(tmp_path)
    for split in PER_CLASS:
        made, shipped = load_dataset(tmp_path, split), load_dataset("fashionmnist_sample", split, img_size=28)
        assert torch.equal(made.images, shipped.images) and torch.equal(made.labels, shipped.labels)
