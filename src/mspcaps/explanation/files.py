"""From picture files to pages."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from mspcaps.data import find_pictures, read_picture
from mspcaps.errors import MspcapsError
from mspcaps.explanation.analysis import explain
from mspcaps.explanation.index import NAME, Index, folder_key, free_folder, has_key, numbered_names
from mspcaps.explanation.view import render_page
from mspcaps.files import to_utf8, weights_name, write_atomically
from mspcaps.models import Model, config_of, load_model, weights_path

MAX_NAME = 180  # bytes of a page's name


@dataclass(frozen=True)
class PageResult:
    """The page of one picture and the answer, or the error."""

    picture: Path
    page: Path | None = None  # beside index.html, which lists all pages
    answer: str = ""
    error: str | None = None


def write_pages(
    weights: str | Path, paths: Iterable[str | Path], out: Path, label: str | None = None,
    progress: Callable[[str, int, int], None] = lambda picture, done, of: None, device: str | torch.device = "cpu",
) -> Iterator[PageResult]:  # fmt: skip
    """Write one page per picture, in order, to a folder of these weights below `out`, and an index page, even if it is
    interrupted. A folder stands for all pictures below it. A broken file does not affect the others."""
    model, name = load_model(weights).to(device), weights_name(weights)
    config = config_of(model)
    if config["in_chans"] not in (1, 3):
        raise MspcapsError(f"the model takes images with {config['in_chans']} channels, but pictures have 1 or 3")
    seen_by = name if config["name"] in name else f"{config['name']}, {name}"
    key = folder_key(weights_path(weights))
    folder = free_folder(out, name, key)
    index = Index(folder, seen_by, key)
    try:
        yield from explain_pictures(model, paths, folder, label, progress, seen_by, index)
    finally:
        if index.cards:
            index.write()


def explain_pictures(
    model: Model, paths: Iterable[str | Path], out: Path, label: str | None,
    progress: Callable[[str, int, int], None], seen_by: str, index: Index,
) -> Iterator[PageResult]:  # fmt: skip
    config = config_of(model)
    for path, refusal in find_pictures(paths):
        try:
            if refusal is not None:
                raise MspcapsError(refusal)
            pixels = torch.from_numpy(read_picture(path, config["img_size"], config["in_chans"]))
        except MspcapsError as error:
            yield PageResult(path, error=str(error))
            continue
        name = display_name(path)
        result = explain(model, pixels[None].float() / 255, partial(progress, name))
        asked = result.class_number(0, label)
        key = page_key(path, label)
        page = free_page(out, page_name(path, label), key)
        write_atomically(page, render_page(result, 0, name, seen_by, asked, key))
        index.add(page, path, name, result)
        labels = dict.fromkeys((int(result.ranking[0, 0]), asked))  # the winner, and the class asked about
        answer = ", ".join(f"{result.classes[number]} {float(result.presence[0, number]):.3f}" for number in labels)
        yield PageResult(path, page, answer)


def display_name(picture: Path) -> str:
    """ship/0.png: pictures of different classes often have the same name."""
    folder = picture.parent.name
    return to_utf8(f"{folder}/{picture.name}" if folder.strip(".") else picture.name)


def page_name(picture: Path, label: str | None = None) -> str:
    """cat/000.png -> cat-000, or cat-000-dog for the class dog. Cut to a length that file systems take, with room for
    the suffix of a file being written."""
    folder = picture.parent.name
    name = to_utf8(f"{folder}-{picture.stem}" if folder.strip(".") else picture.stem)
    name += "-" + re.sub(r"[^\w.-]", "_", label) if label else ""
    if len(name.encode()) <= MAX_NAME:
        return name
    return f"{name.encode()[:MAX_NAME].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def page_key(picture: Path, label: str | None = None) -> str:
    """Identifies picture and class, whatever the working directory, without revealing a path of this machine."""
    return hashlib.sha256(os.fsencode(picture.resolve()) + f"\n{label or ''}".encode()).hexdigest()[:16]


def free_page(out: Path, name: str, key: str) -> Path:
    """name.html, name-2.html, ...: the first that has this key or does not exist yet; index.html is reserved."""
    pages = (out / f"{numbered}.html" for numbered in numbered_names(name) if f"{numbered}.html" != NAME)
    return next(page for page in pages if not os.path.lexists(page) or has_key(page, key))
