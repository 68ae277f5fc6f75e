"""What a notebook shows of an object: small pieces of HTML with inline style, in the colours of the notebook."""

from collections.abc import Iterable, Sequence
from html import escape

CELL = "padding:2px 14px 2px 0;text-align:{};font-variant-numeric:tabular-nums"


def small_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", title: str = "", right: Iterable[int] = ()
) -> str:
    """Text only: everything is escaped. The columns whose numbers are in `right` are aligned to the right."""
    to_right = set(right)
    styles = [CELL.format("right" if number in to_right else "left") for number in range(len(heads))]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in zip(styles, cells, strict=True)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    above = f'<div style="font-weight:600;margin:4px 0">{escape(title)}</div>' if title else ""
    below = f'<div style="opacity:.7;margin:4px 0">{escape(note)}</div>' if note else ""
    return f'{above}<table style="border-collapse:collapse"><tr>{line("th", heads)}</tr>{body}</table>{below}'


def sparkline(values: Sequence[float], label: str) -> str:
    """A curve of 160 x 36 pixels, from the first value to the last."""
    low, high = min(values), max(values)
    step, height = 156 / max(len(values) - 1, 1), 32 / max(high - low, 1e-12)
    points = " ".join(f"{2 + i * step:.1f},{34 - (value - low) * height:.1f}" for i, value in enumerate(values))
    return (
        f'<svg width="160" height="36" role="img" aria-label="{escape(label)}"><polyline points="{points}" fill="none" '
        'stroke="currentColor" stroke-width="1.5"/></svg>'
    )
