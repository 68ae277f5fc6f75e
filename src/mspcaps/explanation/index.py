"""The index page of a folder: a thumbnail, the answer and a link for every explained picture."""

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import torch
from markupsafe import Markup
from torch import Tensor

from mspcaps.explanation.analysis import Explanation
from mspcaps.explanation.drawing import float_image_url
from mspcaps.files import write_atomically
from mspcaps.pages import macro, render

NAME = "index.html"
THUMBNAIL = 96  # pixels of the longer side: a folder may have thousands of pictures
CARD = re.compile(r'<a class="card" href="([^"]+)">.*?</a>', re.DOTALL)


class Index:
    """Cards by the name of the page they link to. Cards of earlier calls stay as long as their pages exist."""

    def __init__(self, out: Path, seen_by: str, key: str) -> None:
        self.path, self.seen_by, self.key = out / NAME, seen_by, key
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
        write_atomically(
            self.path,
            render("explanations.html", title="Explanations", cards=cards, seen_by=self.seen_by, key=self.key),
        )


def thumbnail(image: Tensor) -> str:
    """[c, h, w] in [0, 1] -> a small PNG as a data URL."""
    zoom = THUMBNAIL / max(image.shape[1:])
    if zoom < 1:
        size = [max(1, round(side * zoom)) for side in image.shape[1:]]
        image = torch.nn.functional.interpolate(image[None], size, mode="area")[0]
    return float_image_url(image)


def folder_key(weights: Path) -> str:
    """Identifies the weights whose pages a folder holds, without revealing a path of this machine."""
    return hashlib.sha256(os.fsencode(weights.resolve())).hexdigest()[:16]


def free_folder(out: Path, name: str, key: str) -> Path:
    """name, name-2, ...: the first that holds the pages of these weights or does not exist yet, since runs of different
    models often have the same name."""
    folders = (out / numbered for numbered in numbered_names(name))
    return next(folder for folder in folders if not (folder / NAME).exists() or has_key(folder / NAME, key))


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
