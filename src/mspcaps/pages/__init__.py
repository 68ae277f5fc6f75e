"""What all pages share: the design, the frame, pictures inside. No script, no request: a page opens from anywhere."""

import base64
import io
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

PREFIX = "data:image/png;base64,"


def render(template: str, **values: Any) -> str:
    """A page from a template in templates/. Values are escaped unless they are Markup; a missing one is an error."""
    return environment().get_template(template).render(values)


@cache
def environment() -> jinja2.Environment:
    folder = Path(__file__).with_name("templates")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.globals["stylesheet"] = lambda: Markup(stylesheet())
    return made


def stylesheet(*own: Path) -> str:
    """The design of all pages, then what one of them adds to it."""
    return "".join(sheet.read_text(encoding="utf-8") for sheet in (Path(__file__).with_name("design.css"), *own))


def skeleton(title: str, css: str, body: str, tags: str = "") -> str:
    """A whole page; `tags` come first in its head."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{tags}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{css}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def png_url(pixels: np.ndarray) -> str:
    """uint8 [h, w] or [h, w, 3 or 4] -> a PNG as text."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", optimize=True)
    return PREFIX + base64.b64encode(file.getvalue()).decode()


def image_url(image: np.ndarray) -> str:
    """uint8 [c, h, w] -> a PNG as text; of two channels, or more than three, the first is shown."""
    return png_url(image.transpose(1, 2, 0) if len(image) == 3 else image[0])
