from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    root = tmp_path / "cache"
    monkeypatch.setenv("MSPCAPS_DATA", str(root))
    return root
