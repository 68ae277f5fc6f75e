"""From picture files to pages."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch

from mspcaps.data import find_pictures, read_picture
from mspcaps.errors import MspcapsError
from mspcaps.explanation.analysis import explain
from mspcaps.explanation.view import render_page
from mspcaps.files import to_utf8, write_atomically
from mspcaps.models import Model, config_of

MAX_NAME = 180  # bytes of a page's name
KEY_WITHIN = 1000  # bytes of a page, from its beginning, that hold its key


@dataclass(frozen=True)
class PageResult:
    """The page of one picture and its answer, or the sentence that says why there is none."""

    picture: Path
    page: Path | None = None
    answer: str = ""
    error: str | None = None


def write_pages(
    model: Model, paths: Iterable[str | Path], out: Path, label: str | None = None,
    progress: Callable[[str, int, int], None] = lambda picture, done, of: None, seen_by: str = "",
) -> Iterator[PageResult]:  # fmt: skip
    """One page per picture, in order; a folder stands for all pictures below it. A broken file spoils no other."""
    config = config_of(model)
    if config["in_chans"] not in (1, 3):
        raise MspcapsError(f"the model takes images with {config['in_chans']} channels, but pictures have 1 or 3")
    for path, refusal in find_pictures(paths):
        try:
            if refusal is not None:
                raise MspcapsError(refusal)
            pixels = torch.from_numpy(read_picture(path, config["img_size"], config["in_chans"]))
        except MspcapsError as error:
            yield PageResult(path, error=str(error))
            continue
        name = display_name(path)
        found = explain(model, pixels[None].float() / 255, partial(progress, name))
        asked = found.class_number(0, label)
        key = page_key(path, label)
        page = free_page(out, page_name(path, label), key)
        write_atomically(page, render_page(found, 0, name, seen_by or config["name"], asked, key))
        named = dict.fromkeys((int(found.ranking[0, 0]), asked))  # the winner, and what was asked about
        answer = ", ".join(f"{found.classes[number]} {float(found.presence[0, number]):.3f}" for number in named)
        yield PageResult(path, page, answer)


def display_name(picture: Path) -> str:
    """ship/0.png: pictures of different classes are often called alike."""
    folder = picture.parent.name
    return to_utf8(f"{folder}/{picture.name}" if folder.strip(".") else picture.name)


def page_name(picture: Path, label: str | None = None) -> str:
    """cat/000.png -> cat-000, asked about the class dog cat-000-dog. As long as a disk takes it, with room for what is
    added while it is written."""
    folder = picture.parent.name
    name = to_utf8(f"{folder}-{picture.stem}" if folder.strip(".") else picture.stem)
    name += "-" + re.sub(r"[^\w.-]", "_", label) if label else ""
    if len(name.encode()) <= MAX_NAME:
        return name
    return f"{name.encode()[:MAX_NAME].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def page_key(picture: Path, label: str | None = None) -> str:
    """What a page is about, wherever the command was called from; it gives no path of the machine away."""
    return hashlib.sha256(os.fsencode(picture.resolve()) + f"\n{label or ''}".encode()).hexdigest()[:16]


def free_page(out: Path, name: str, key: str) -> Path:
    """name.html, name-2.html, ...: the first that is about this very picture or not there yet."""
    pages = (out / f"{name}{f'-{number}' if number > 1 else ''}.html" for number in count(1))
    return next(page for page in pages if not os.path.lexists(page) or has_key(page, key))


def has_key(page: Path, key: str) -> bool:
    try:
        with page.open("rb") as file:
            return f'content="{key}"'.encode() in file.read(KEY_WITHIN)
    except OSError:
        return False
