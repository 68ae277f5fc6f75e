"""What the tests of the exports make: models with a past, weights, pictures."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from mspcaps import create_model
from mspcaps.capsules import AttentionRouting
from mspcaps.models import save_weights

CLASSES = ["cat", "dog"]
SOURCE = Path(__file__).parents[2] / "src"


def seasoned(name: str, **task: object) -> nn.Module:
    """Random weights whose BatchNorm has seen something: a fresh one would hide mistakes."""
    torch.manual_seed(0)
    model = create_model(name, **task).eval()  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, AttentionRouting):
            module.w.data *= 300  # its first scores are all close to zero
    return model


def weights(path: Path, in_chans: int = 3, size: tuple[int, int] = (16, 20), name: str = "mspcaps_t_scale16") -> Path:
    model = seasoned(name, num_classes=2, in_chans=in_chans, img_size=size, mean=[0.4] * in_chans, std=[0.3] * in_chans)
    save_weights(path, model, classes=CLASSES, recipe={"data": "pictures"})
    return path


def without_torch(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where importing torch fails, as it does where torch is not installed."""
    (folder / "blocked").mkdir(exist_ok=True)
    (folder / "blocked" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'blocked'}{os.pathsep}{SOURCE}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def draw(folder: Path, count: int = 16) -> Path:
    """Noise in colour, of odd sizes, a folder per class."""
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            noise = [Image.effect_noise((40 + i, 36), 20 + 30 * number + 5 * c) for c in range(3)]
            Image.merge("RGB", noise).save(folder / name / f"{i:02d}.png")
    return folder
