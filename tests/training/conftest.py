"""A tiny real data set: pictures of bars whose direction is the class, cheap enough to train on in a second."""

from pathlib import Path

import numpy as np
import pytest


def bars(n: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    images = rng.integers(0, 60, (n, size, size, 3))
    for image, label in zip(images, labels, strict=True):
        at = rng.integers(2, size - 2)
        if label == 0:
            image[at - 1 : at + 1] += 180
        elif label == 1:
            image[:, at - 1 : at + 1] += 180
        else:
            image[at - 2 : at + 2, at - 2 : at + 2] += 180
    return images.astype(np.uint8), labels.astype(np.int64)


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 training and 40 test images of 16 x 16 pixels in three classes."""
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    x_train, y_train = bars(96, 16, 0)
    x_test, y_test = bars(40, 16, 1)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path
