"""Tables of generated Markdown."""

from collections.abc import Iterable, Sequence


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A table; the columns whose numbers are in `right` are aligned to the right."""
    to_right = set(right)
    rule = ["--:" if number in to_right else "---" for number in range(len(heads))]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (heads, rule, *rows)]
