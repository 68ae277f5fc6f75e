"""PatchifyCaps, Algorithm 1 of the paper: one patch, one capsule."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Grid = tuple[int, int]  # rows and columns of capsules


class OnGrid(NamedTuple):
    """Says that the rows of a tensor lie on this grid, row-major, and can be interpolated to another grid."""

    rows: int
    columns: int


class PatchifyCaps(nn.Module):
    """Feature map [b, c, h, w] -> capsules [b, n, d], row-major on a grid of h // p by w // p patches.

    A remainder at the border is dropped (the paper's "border feature loss" at p = 3).
    """

    def __init__(self, in_chans: int, caps_dim: int, grid: Grid, patch: int, position: bool = True) -> None:
        super().__init__()
        self.grid, self.patch = grid, patch
        self.project = nn.Linear(in_chans, caps_dim)  # the 1x1 convolution, applied to channels-last patches
        self.position = nn.Parameter(torch.empty(grid[0] * grid[1], caps_dim)) if position else None
        self.norm = nn.LayerNorm(caps_dim)
        if self.position is not None:
            nn.init.normal_(self.position)  # not in the paper; docs/results.md has what was tried on held-out images

    def extra_repr(self) -> str:
        return f"grid={self.grid}, patch={self.patch}"

    def tensor_places(self) -> dict[str, OnGrid]:
        return {} if self.position is None else {"position": OnGrid(*self.grid)}

    def forward(self, f: Tensor) -> Tensor:
        return self.embed(patch_averages(f, self.patch))  # line 1       [b, n, c]

    def embed(self, u: Tensor) -> Tensor:
        """Patch averages [b, n, c] -> capsules [b, n, d]."""
        u = self.project(u)  # lines 2-4    [b, n, d]
        if self.position is not None:
            u = u + self.position  # line 5
        return self.norm(u)  # lines 6-7


def patch_averages(f: Tensor, patch: int) -> Tensor:
    """[b, c, h, w] -> [b, n, c]: the mean of every patch, row-major."""
    return F.avg_pool2d(f, patch).permute(0, 2, 3, 1).flatten(1, 2)
