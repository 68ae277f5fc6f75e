"""Fifty users at once, for a second; load_50_users.py does the same for a minute, by hand."""

import pytest
from load_50_users import QUICK, run

GROWTH = 512 << 20  # bytes


@pytest.mark.slow
def test_fifty_users_at_once(server):
    found = run(server, 50, 1, QUICK)
    assert found.errors == [], str(found)
    assert found.answers >= 50, str(found)
    before, peak, _ = found.memory
    assert peak - before < GROWTH, str(found)
