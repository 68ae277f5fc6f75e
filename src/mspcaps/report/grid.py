"""What all generated Markdown has: the warning at its top, and tables."""

from collections.abc import Iterable, Sequence

GENERATED = "<!-- Written by `mspcaps report` from the ledger in results/. Do not edit: a test compares the two. -->"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A table; the columns whose numbers are in `right` are aligned to the right."""
    to_right = set(right)
    rule = ["--:" if number in to_right else "---" for number in range(len(heads))]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (heads, rule, *rows)]
