"""What all pages share: templates, style, charts, images. Without scripts or requests, a page opens anywhere."""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from mspcaps import __version__

PREFIX = "data:image/png;base64,"


class Bar(NamedTuple):
    """A class with a number in [0, 1], as the macro `bars` draws it."""

    name: str
    value: float
    kind: str = ""  # true, false or other: its colour


def score_unit(kind: str, capsules: bool) -> str:
    """What the bars of scores show: `kind` is lengths or logits, `capsules` whether lengths are those of capsules."""
    if kind == "logits":
        return "probability"
    return "length" if capsules else "score"


def render(template: str, **values: Any) -> str:
    """A page from a template in templates/. Values are escaped unless they are Markup; a missing one is an error."""
    return environment().get_template(template).render(values)


def macro(template: str, name: str) -> Callable[..., Markup]:
    """A macro of a template, which renders a piece of a page."""
    return getattr(environment().get_template(template).module, name)


@cache
def environment() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("mspcaps.pages"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    templates.globals["version"] = __version__
    templates.filters["signed"] = signed
    return templates


def signed(value: float | None) -> str:
    """+0.25, −0.10, +0.0031: small values keep enough digits not to become zero"""
    value = value or 0.0
    digits = 2 if not value or abs(value) >= 0.1 else 3 if abs(value) >= 0.01 else 4
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")  # adding zero makes -0.0 a plain zero


def png_url(pixels: np.ndarray) -> str:
    """uint8 [h, w] or [h, w, 3 or 4] -> a PNG as a data URL."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", optimize=True)
    return PREFIX + base64.b64encode(file.getvalue()).decode()


def image_url(image: np.ndarray) -> str:
    """uint8 [c, h, w] -> a PNG as a data URL; of two channels, or more than three, only the first."""
    return png_url(image.transpose(1, 2, 0) if len(image) == 3 else image[0])


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown; the columns whose numbers are in `right` are aligned to the right."""
    to_right = set(right)
    rule = ["--:" if number in to_right else "---" for number in range(len(heads))]
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (heads, rule, *rows)]
    return "\n".join(f"| {line} |" for line in lines)
