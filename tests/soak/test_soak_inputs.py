"""Hundreds of kinds of bad input: no traceback, no hang, no silent change of meaning, no half a file.

`make soak` runs them all, `make test` one of every thirty.
"""

import re
import shutil
from pathlib import Path

import pytest

from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from tests.cli.cli_makers import draw, trained
from tests.soak import folders, options, weights
from tests.soak.kinds import FINE, Kind

KINDS = [kind for table in (options, folders, weights) for kind in table.kinds()]
STRIDE = 45  # every so many kinds one is in `make test`: a dozen in all
LEAST = 300


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("soak")
    draw(place / "pictures")
    trained(place / "model.safetensors")
    shutil.copy(place / "pictures/disc/0.png", place / "one.png")
    return place


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSPCAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_there_are_enough_kinds() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= LEAST


@pytest.mark.soak
def test_every_hostile_picture_is_among_them() -> None:
    assert {make: len(list(make())) for make in folders.HOSTILE} == folders.HOSTILE


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if n % STRIDE == 0 else [pytest.mark.soak], id=kind.name)
        for n, kind in enumerate(KINDS)
    ],
)
def test_bad_input(kind: Kind, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not kind.line:
        with pytest.raises((MspcapsError, ValueError), match=f"(?is).*({kind.names})"):
            kind.prepare()
        return
    fine = kind.prepare() is FINE
    capsys.readouterr()
    before = {path for path in place.rglob("*") if path.is_file()}
    status = main(kind.line.split())
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if fine or (kind.goes_on and status == 0):
        assert status == 0 and (fine or re.search(kind.names, out + err)), out + err
        return
    assert status in (1, 2), f"it went on in silence: {out}{err}"  # 1: some pictures failed, others did not
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert any(re.search(kind.names, line, re.IGNORECASE) for line in said or [out]), out + err
    if status == 2:
        assert len(said) == 1, err
        left = {path for path in place.rglob("*") if path.is_file()} - before
        assert not [path for path in left if path.suffix in (".part", ".json", ".safetensors", ".npz", ".onnx")], left
