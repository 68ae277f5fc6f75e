"""The command line in this process: fast, and what it prints can be read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mspcaps.cli import main


@dataclass(frozen=True)
class Spoken:
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a folder and a data cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSPCAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., Spoken]:
    def say(*args: object) -> Spoken:
        status = main([str(arg) for arg in args])
        return Spoken(status, *capsys.readouterr())

    return say
