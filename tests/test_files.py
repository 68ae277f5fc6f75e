"""Files as they lie on the disk."""

from pathlib import Path

import pytest

from mspcaps.files import weights_name, write_atomically


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
