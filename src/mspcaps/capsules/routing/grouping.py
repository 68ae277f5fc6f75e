"""Which fine capsules lie under which coarse one."""

import math

from torch import Tensor

from mspcaps.capsules.patchify import Grid


def group_size(fine: Grid, coarse: Grid) -> int:
    """m: the number of fine capsules under one coarse capsule."""
    return (fine[0] // coarse[0]) * (fine[1] // coarse[1])


def group_fine(u: Tensor, fine: Grid, coarse: Grid) -> Tensor:
    """[b, n1, d] on the fine grid -> [b, k, m, d]: the window of capsules that lies under each coarse capsule k.

    Fine rows and columns beyond a multiple of the coarse grid are dropped. Consecutive runs instead of windows are the
    same thing on grids of one row.
    """
    b, _, d = u.shape
    rows, columns = fine[0] // coarse[0], fine[1] // coarse[1]  # of one window
    u = u.view(b, fine[0], fine[1], d)[:, : rows * coarse[0], : columns * coarse[1]]
    u = u.reshape(b, coarse[0], rows, coarse[1], columns, d)
    u = u.transpose(2, 3)  # [b, row of k, column of k, rows, columns, d]
    return u.reshape(b, coarse[0] * coarse[1], rows * columns, d)


def middle_grids(n_mid: int, coarse: Grid) -> tuple[Grid, Grid]:
    """(grid of the middle capsules, grid of the coarse ones) for the second routing block.

    Middle capsules are numbered, not placed. When r x r of them meet each coarse capsule they are laid on the grid
    that is r times finer; otherwise groups are consecutive runs.
    """
    n = coarse[0] * coarse[1]
    r = math.isqrt(n_mid // n)
    if r * r * n == n_mid:
        return (r * coarse[0], r * coarse[1]), coarse
    return (1, n_mid), (1, n)
