"""Files as they lie on the disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from mspcaps.errors import MspcapsError
from mspcaps.files import NUMBER, read_form, weights_name, write_atomically


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    """It begins as a temporary file, which nobody else may read."""
    (tmp_path / "plain").write_text("x")
    write_atomically(tmp_path / "ours", "x")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["ours", "plain"]
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("mspcaps_t.cifar10", "mspcaps_t.cifar10"), ("a/model.onnx", "model.onnx"), ("a/own.safetensors", "own"),
        ("runs/cats/resnet20/mine-seed0/last.safetensors", "resnet20-mine-seed0"),
        ("runs/cats/resnet20/mine-seed0/best.safetensors", "resnet20-mine-seed0-best"),
        ("hub/pets/model.safetensors", "pets"),
    ],
)  # fmt: skip
def test_no_two_weights_of_a_run_folder_share_a_name(path: str, name: str) -> None:
    assert weights_name(path) == name


FORM = {"name": str, "count": int, "rates": [NUMBER], "tables": {"*": {"done": bool}}}
WHOLE: dict[str, Any] = {"name": "x", "count": 3, "rates": [1, 2.5], "tables": {"a": {"done": True, "more": None}}}


def test_a_json_file_must_have_its_form(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(WHOLE | {"newer": 1}))
    assert read_form(path, FORM, "a thing") == WHOLE | {"newer": 1}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 3}, "name is 3"), ({"count": 1.5}, "count is 1.5"), ({"count": True}, "count is True"),
        ({"rates": [1, "2"]}, r"rates\[1\] is '2'"), ({"rates": 1}, "rates is 1"),
        ({"tables": {"a": {"done": True}, "b": {"done": 1}}}, "tables.b.done is 1"),
        ({"tables": {"a": {}}}, "tables.a.done"),
        ({"tables": []}, r"tables is \[\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(WHOLE | change))
    with pytest.raises(MspcapsError, match=f"x.json is not a thing.*{named}"):
        read_form(path, FORM, "a thing")


@pytest.mark.parametrize("text", ["", "[1", "3", "[]", "null"])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(MspcapsError, match=r"x\.json"):
        read_form(path, FORM, "a thing")
