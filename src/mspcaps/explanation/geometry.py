"""Where a capsule looks: its cell on the grid of its scale, and the pixels of that cell."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mspcaps.capsules.patchify import Grid
from mspcaps.capsules.routing.cross_agreement import group_fine
from mspcaps.evaluation.shifts import gaussian_blur


class Rect(NamedTuple):
    """Pixel rows top ... bottom - 1 and columns left ... right - 1."""

    top: int
    left: int
    bottom: int
    right: int


class Scale(NamedTuple):
    """One scale: the grid of its patches, and the width of a cell in pixels.

    If capsules are cut from patches of p x p numbers of a feature map, a cell is p times the stride of that map. The
    receptive field of a capsule is larger: every convolution on the way adds a margin.
    """

    cell: int  # pixels: the patch times the stride of its feature map
    grid: Grid
    img_size: tuple[int, int]

    def place(self, index: int) -> tuple[int, int]:
        """(row, column) on the grid."""
        return divmod(index, self.grid[1])

    def rect(self, index: int) -> Rect:
        """The pixels of one cell, clipped to the image."""
        row, column = self.place(index)
        top, left = row * self.cell, column * self.cell
        return Rect(top, left, min(top + self.cell, self.img_size[0]), min(left + self.cell, self.img_size[1]))

    def inside(self, rect: Rect) -> list[int]:
        """The patches that begin in this rectangle; the last patch if the rectangle lies beyond them all."""

        def numbers(first: int, end: int, count: int) -> range:
            """Of the rows or columns that begin between two pixels."""
            return range(min(math.ceil(first / self.cell), count - 1), min(math.ceil(end / self.cell), count))

        rows = numbers(rect.top, rect.bottom, self.grid[0])
        columns = numbers(rect.left, rect.right, self.grid[1])
        return [row * self.grid[1] + column for row in rows for column in columns]

    def owners(self) -> Tensor:
        """int64 [H, W]: the patch that each pixel belongs to; a border that no patch covers joins its neighbour."""
        rows, columns = (
            (torch.arange(side) // self.cell).clamp(max=count - 1)
            for side, count in zip(self.img_size, self.grid, strict=True)
        )
        return rows[:, None] * self.grid[1] + columns

    def spread(self, values: Tensor) -> Tensor:
        """[b, n] -> [b, H, W]: the value of each cell divided evenly among its pixels, so that the sums agree.

        Pixels outside all cells (the border that patches of 3 drop) get zero.
        """
        (rows, columns), (height, width) = self.grid, self.img_size
        heights = (height - self.cell * torch.arange(rows)).clamp(max=self.cell)  # the last cell may be cut off
        widths = (width - self.cell * torch.arange(columns)).clamp(max=self.cell)
        area = (heights[:, None] * widths).to(values)  # [rows, columns]
        density = values.reshape(-1, rows, columns) / area
        density = density.repeat_interleave(self.cell, 1).repeat_interleave(self.cell, 2)[:, :height, :width]
        return F.pad(density, (0, width - density.shape[2], 0, height - density.shape[1]))

    def gather(self, heat: Tensor) -> Tensor:
        """[b, H, W] -> [b, n]: the sum of a map over each cell and the border that joins it."""
        sums = heat.new_zeros(len(heat), self.grid[0] * self.grid[1])
        return sums.index_add(1, self.owners().flatten().to(heat.device), heat.flatten(1))


def smooth(heat: Tensor, cell: int) -> Tensor:
    """[b, H, W] -> [b, H, W]: without the edges of cells, which the eye would mistake for edges in the image.

    A Gaussian whose standard deviation is a third of the finest cell; the border is replicated.
    """
    return gaussian_blur(heat.unsqueeze(1), cell / 3)[:, 0]


def default_scales(img_size: tuple[int, int]) -> list[Scale]:
    """For a model without patches of its own: at most 8, 4 and 2 along the longer side."""
    height, width = img_size
    cells = dict.fromkeys(math.ceil(max(img_size) / count) for count in (8, 4, 2))
    return [Scale(cell, (math.ceil(height / cell), math.ceil(width / cell)), img_size) for cell in cells]


def members(fine: Grid, coarse: Grid) -> Tensor:
    """int64 [k, m]: the number of the m-th fine capsule under the coarse capsule k, as the routing groups them."""
    numbers = torch.arange(fine[0] * fine[1]).view(1, -1, 1)
    return group_fine(numbers, fine, coarse)[0, :, :, 0]
