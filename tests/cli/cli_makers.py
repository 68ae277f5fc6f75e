"""What the tests of the command line make: pictures and weights."""

from pathlib import Path

import torch
from PIL import Image

from mspcaps import create_model
from mspcaps.models import save_weights

TINY = ["--model", "mspcaps_t_scale16", "--epochs", "1", "--batch-size", "4", "--device", "cpu"]


def draw(folder: Path, classes: tuple[str, ...] = ("disc", "square"), count: int = 6, size: int = 16) -> Path:
    """A folder of class folders with a few small grey pictures."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = torch.full((size, size), 100 * number + i, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name / f"{i}.png")
    return folder


def trained(path: Path, name: str = "mspcaps_t_scale16", size: int = 16) -> Path:
    """Weights of a small model for the pictures of `draw`."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=2, in_chans=1, img_size=size)
    save_weights(path, model, classes=["disc", "square"], recipe={"data": "pictures"})
    return path
