"""Packs the embedded sample from the cached FashionMNIST: `python -m tools.pack_sample`.

The first 500 training and 100 test images of each class, in file order, as a PNG mosaic and the labels of each split;
manifest.json has the sha256 of each array.
"""

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mspcaps.data.cache import SAMPLE_FOLDER, read_cached
from mspcaps.data.formats import COLUMNS, array_sha256
from mspcaps.errors import MspcapsError
from mspcaps.files import write_atomically, write_json

PER_CLASS = {"train": 500, "test": 100}


def choose(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Positions of the first `per_class` images of each class, in file order."""
    first = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(first))


def mosaic(images: np.ndarray) -> np.ndarray:
    """uint8 [N, H, W] -> one grey picture, 100 images per row, the last row filled with black."""
    n, h, w = images.shape
    rows = math.ceil(n / COLUMNS)
    canvas = np.zeros((rows * COLUMNS, h, w), np.uint8)
    canvas[:n] = images
    return canvas.reshape(rows, COLUMNS, h, w).transpose(0, 2, 1, 3).reshape(rows * h, COLUMNS * w)


def make(folder: Path) -> None:
    """Write the sample into the folder."""
    splits: dict[str, Any] = {}
    for split, per_class in PER_CLASS.items():
        arrays = read_cached("fashionmnist", split)
        images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
        chosen = choose(labels, per_class)
        images, labels = images[chosen, 0], labels[chosen]
        picture = Image.fromarray(mosaic(images))
        write_atomically(folder / f"{split}-00.png", partial(picture.save, format="PNG", optimize=True))
        write_atomically(folder / f"{split}-labels.npy", partial(np.save, arr=labels))
        splits[split] = {
            "shape": list(images.shape),
            "parts": [{"file": f"{split}-00.png", "images": len(images)}],
            "x_sha256": array_sha256(images),
            "y_sha256": array_sha256(labels),
        }
    write_json(folder / "manifest.json", {"name": "fashionmnist_sample", "splits": splits})


if __name__ == "__main__":
    try:
        make(SAMPLE_FOLDER)
    except MspcapsError as error:
        sys.exit(f"error: {error}")
