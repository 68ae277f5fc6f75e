"""Which fine capsule lies under which coarse one, against index loops."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules.routing.cross_agreement import group_fine, group_size

grids = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(deadline=None, max_examples=60)
@given(coarse=grids, window=grids, rest=grids, batch=st.integers(1, 3))
def test_windows_equal_an_index_loop(coarse, window, rest, batch):
    # The rest is shorter than the coarse grid: more would make the windows larger.
    fine = tuple(coarse[i] * window[i] + min(rest[i], coarse[i]) - 1 for i in (0, 1))
    u = torch.randn(batch, fine[0] * fine[1], 2)
    groups = group_fine(u, fine, coarse)
    assert groups.shape == (batch, coarse[0] * coarse[1], group_size(fine, coarse), 2)
    for k in range(coarse[0] * coarse[1]):
        members = []
        for row in range(fine[0]):
            for column in range(fine[1]):
                under = (row // window[0], column // window[1])
                if under == (k // coarse[1], k % coarse[1]):
                    members.append(u[:, row * fine[1] + column])
        assert torch.equal(groups[:, k], torch.stack(members, dim=1))


def test_grids_of_one_row_give_consecutive_runs():
    u = torch.arange(24.0).view(1, 24, 1)
    assert torch.equal(group_fine(u, (1, 24), (1, 4)).flatten(), torch.arange(24.0))
    assert group_fine(u, (1, 24), (1, 4)).shape == (1, 4, 6, 1)


def test_capsules_in_any_memory_layout_are_grouped():
    u = torch.randn(3, 5, 36).transpose(1, 2)  # as a permuted convolution output would arrive
    assert torch.equal(group_fine(u, (6, 6), (2, 3)), group_fine(u.contiguous(), (6, 6), (2, 3)))
