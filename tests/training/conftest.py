"""A tiny data set on the disk."""

from pathlib import Path

import numpy as np
import pytest
from training_makers import bars


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 training and 40 test images of 16 x 16 pixels in three classes."""
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    x_train, y_train = bars(96, 16, 0)
    x_test, y_test = bars(40, 16, 1)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path
