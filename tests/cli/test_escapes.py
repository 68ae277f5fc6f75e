"""Names of files and classes that a terminal would obey are printed as text, by every command."""

import pytest
from cli_makers import TINY, draw, trained

EVIL = "dis\x1b[2J\x1b]0;mine\x07c"  # clears the screen and renames the window


@pytest.fixture
def pictures(place):
    """A folder, a class, a picture and a broken one with such names."""
    folder = draw(place / f"pic{EVIL}", classes=(EVIL, "square"))
    (folder / EVIL / "0.png").rename(folder / EVIL / f"{EVIL}.png")
    return folder


@pytest.mark.slow
def test_no_command_prints_them_raw(say, place, pictures):
    said = [
        say("train", "--data", pictures, *TINY, "--name", "one"),
        say("train", "--data", pictures, *TINY, "--name", "one"),  # already done
        say("report", "--results", "results", "--out", f"out{EVIL}"),
    ]
    weights = next(place.glob("runs/*/*/*/last.safetensors"))
    said += [
        say("eval", weights),
        say("eval", weights, "--shifts", "--images", "2"),
        say("predict", weights, pictures),
        say("explain", weights, pictures / EVIL / f"{EVIL}.png"),
    ]
    assert [one.status for one in said] == [0] * len(said), [one.err for one in said]
    (pictures / EVIL / "1.png").write_bytes(b"nothing")
    said += [say("predict", weights, pictures), say("eval", weights), say("eval", EVIL), say(EVIL), say("train", EVIL)]
    said.append(say("predict", trained(place / "w.safetensors"), f"{EVIL}.png"))
    for number, one in enumerate(said):
        assert not {"\x1b", "\x07"} & {*one.out, *one.err}, number
        if number:
            assert r"\x1b[2J" in one.out + one.err, number
