"""From picture files to a folder of pages, with an index page that has a thumbnail, the answer and a link for each."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from mspcaps.data import find_pictures, read_picture
from mspcaps.errors import MspcapsError
from mspcaps.explanation.analysis import Explanation, explain
from mspcaps.explanation.drawing import float_image_url
from mspcaps.explanation.view import render_page
from mspcaps.files import to_utf8, weights_name, write_atomically
from mspcaps.models import load_model, weights_path
from mspcaps.pages import macro, render

INDEX = "index.html"
MAX_NAME = 180  # bytes of a page's name
THUMBNAIL = 96  # pixels of the longer side: a folder may have thousands of pictures
CARD = re.compile(r'<a class="card" href="([^"]+)">.*?</a>', re.DOTALL)


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
    model, weights_title = load_model(weights).to(device), weights_name(weights)
    architecture, channels = model.config["name"], model.in_chans
    if channels not in (1, 3):
        raise MspcapsError(f"the model takes images with {channels} channels, but pictures have 1 or 3")
    seen_by = weights_title if architecture in weights_title else f"{architecture}, {weights_title}"
    key = key_of(weights_path(weights))
    folder = free_folder(out, weights_title, key)
    index = Index(folder, seen_by, key)
    try:
        for path, refusal in find_pictures(paths):
            try:
                if refusal is not None:
                    raise MspcapsError(refusal)
                pixels = torch.from_numpy(read_picture(path, model.img_size, channels))
            except MspcapsError as error:
                yield PageResult(path, error=str(error))
                continue
            name, page_key = display_name(path), key_of(path, f"\n{label or ''}")
            result = explain(model, pixels[None].float() / 255, partial(progress, name))
            asked = result.class_number(0, label)
            page = free_page(folder, page_name(path, label), page_key)
            write_atomically(page, render_page(result, 0, name, seen_by, asked, page_key))
            index.add(page, path, name, result)
            shown = dict.fromkeys((int(result.ranking[0, 0]), asked))  # the winner, and the class asked about
            answer = ", ".join(f"{result.classes[number]} {float(result.presence[0, number]):.3f}" for number in shown)
            yield PageResult(path, page, answer)
    finally:
        if index.cards:
            index.write()


class Index:
    """Cards by the name of the page they link to. Cards of earlier calls stay as long as their pages exist."""

    def __init__(self, out: Path, seen_by: str, key: str) -> None:
        self.path, self.seen_by, self.key = out / INDEX, seen_by, key
        self.cards: dict[str, Markup] = {}
        if self.path.is_file():
            for card in CARD.finditer(self.path.read_text(encoding="utf-8")):
                if (out / (page := unquote(card[1]))).is_file():
                    self.cards[page] = Markup(card[0])

    def add(self, page: Path, picture: Path, title: str, explanation: Explanation) -> None:
        """The answer for the only image of the explanation; also the name of its folder if that is another class."""
        number, classes = int(explanation.ranking[0, 0]), explanation.classes
        folder = picture.resolve().parent.name
        self.cards.pop(page.name, None)  # a picture that is explained again moves to the end
        self.cards[page.name] = macro("pieces.html", "picture_card")(
            page=page.name, title=title, image=thumbnail(explanation.images[0]), answer=classes[number],
            presence=float(explanation.presence[0, number]),
            folder=folder if folder in classes and folder != classes[number] else None,
        )  # fmt: skip

    def write(self) -> None:
        cards = list(self.cards.values())
        page = render("explanations.html", title="Explanations", cards=cards, seen_by=self.seen_by, key=self.key)
        write_atomically(self.path, page)


def thumbnail(image: Tensor) -> str:
    """[c, h, w] in [0, 1] -> a small PNG as a data URL."""
    zoom = THUMBNAIL / max(image.shape[1:])
    if zoom < 1:
        size = [max(1, round(side * zoom)) for side in image.shape[1:]]
        image = F.interpolate(image[None], size, mode="area")[0]
    return float_image_url(image)


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


def key_of(path: Path, more: str = "") -> str:
    """Identifies a file, whatever the working directory, without revealing a path of this machine."""
    return hashlib.sha256(os.fsencode(path.resolve()) + more.encode()).hexdigest()[:16]


def free_page(out: Path, name: str, key: str) -> Path:
    """name.html, name-2.html, ...: the first that has this key or does not exist yet; index.html is reserved."""
    pages = (out / f"{numbered}.html" for numbered in numbered_names(name) if f"{numbered}.html" != INDEX)
    return next(page for page in pages if not os.path.lexists(page) or has_key(page, key))


def free_folder(out: Path, name: str, key: str) -> Path:
    """name, name-2, ...: the first that holds the pages of these weights or does not exist yet, since runs of different
    models often have the same name."""
    folders = (out / numbered for numbered in numbered_names(name))
    return next(folder for folder in folders if not (folder / INDEX).exists() or has_key(folder / INDEX, key))


def numbered_names(name: str) -> Iterator[str]:
    """name, name-2, name-3, ..."""
    return (name if number == 1 else f"{name}-{number}" for number in count(1))


def has_key(page: Path, key: str) -> bool:
    """Whether a page carries this key in its first bytes."""
    try:
        with page.open("rb") as file:
            return f'content="{key}"'.encode() in file.read(1000)
    except OSError:
        return False
