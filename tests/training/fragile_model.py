"""A tiny model that kills its process once, in the middle of a run: if there is a file `fragile`, as soon as there is a
checkpoint. It notes the process that trains it in the file `trained`, once per run."""

import contextlib
import os
import signal
from pathlib import Path

import torch
from torch import nn

from mspcaps.models import Model, Task, register_model


class Fragile(Model):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.steps = 0
        self.conv, self.norm, self.head = nn.Conv2d(task.in_chans, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) == 16:  # not when its memory is estimated
            self.steps += 1
            if self.steps == 1:
                with Path("trained").open("a") as file:
                    file.write(f"{os.getpid()}\n")
            elif any(Path("runs").rglob("checkpoint.safetensors")):
                with contextlib.suppress(FileNotFoundError):  # the other process may be first
                    Path("fragile").unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.norm(self.conv(x)).relu().mean((2, 3))

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)


@register_model
def fragile(task: Task) -> Model:
    return Fragile(task)
