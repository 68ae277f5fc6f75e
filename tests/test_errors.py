"""Words for errors."""

from mspcaps.errors import first_line


def test_the_first_line_of_an_error():
    assert first_line(ValueError("\n\n  That is that. \nAnd so on")) == "That is that."
    assert first_line(ValueError()) == "ValueError"
