"""Which fine capsule lies under which coarse one, against index loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mspcaps.capsules.routing.grouping import group_fine, group_size, middle_grids

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


@pytest.mark.parametrize(
    ("n_mid", "coarse", "expected"),
    [
        (16, (2, 2), ((4, 4), (2, 2))),  # p = 4
        (64, (4, 4), ((8, 8), (4, 4))),  # p = 2
        (24, (2, 2), ((1, 24), (1, 4))),  # p = 3: 24 is not a square, so consecutive runs of 6
        (24, (2, 3), ((4, 6), (2, 3))),  # not a square either, but 2 x 2 for each of 2 x 3
        (6, (2, 3), ((2, 3), (2, 3))),
        (3, (1, 1), ((1, 3), (1, 1))),
    ],
)
def test_middle_grids_of_known_cases(n_mid, coarse, expected):
    assert middle_grids(n_mid, coarse) == expected


@settings(deadline=None, max_examples=60)
@given(coarse=grids, per_capsule=st.integers(1, 20))
def test_middle_grids_use_every_capsule_once(coarse, per_capsule):
    n = coarse[0] * coarse[1]
    fine, new_coarse = middle_grids(n * per_capsule, coarse)
    assert fine[0] * fine[1] == n * per_capsule and new_coarse[0] * new_coarse[1] == n
    assert group_size(fine, new_coarse) == per_capsule
    numbers = torch.arange(float(n * per_capsule)).view(1, -1, 1)
    assert sorted(group_fine(numbers, fine, new_coarse).flatten().tolist()) == numbers.flatten().tolist()
    windows = any(r * r == per_capsule for r in range(1, 20))
    assert (new_coarse == coarse) if windows else (fine[0] == 1)
