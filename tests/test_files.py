"""Files as they lie on the disk."""

from pathlib import Path

from mspcaps.files import write_atomically


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    """It begins as a temporary file, which nobody else may read."""
    (tmp_path / "plain").write_text("x")
    write_atomically(tmp_path / "ours", "x")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["ours", "plain"]
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
