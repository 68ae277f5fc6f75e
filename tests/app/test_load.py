"""Fifty users at once, for a few seconds; load_50_users.py does the same for a minute, by hand."""

from load_50_users import run

GROWTH = 512 << 20  # bytes


def test_fifty_users_at_once(server):
    found = run(server, 50, 6)
    assert found.errors == [], str(found)
    assert found.answers >= 50, str(found)
    before, peak, _ = found.memory
    assert peak - before < GROWTH, str(found)
