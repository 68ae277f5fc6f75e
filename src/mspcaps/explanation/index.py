"""The page of a folder: a thumbnail, the answer and the link of every picture that was explained into it."""

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
from mspcaps.files import write_atomically
from mspcaps.pages import image_url, macro, render

NAME = "index.html"
THUMBNAIL = 96  # pixels of the longer side: a folder has thousands of pictures
CARD = re.compile(r'<a class="card" href="([^"]+)">.*?</a>', re.DOTALL)


class Index:
    """Cards by the name of the page they link to. Those of earlier calls stay as long as their pages do."""

    def __init__(self, out: Path, seen_by: str, key: str) -> None:
        self.path, self.seen_by, self.key = out / NAME, seen_by, key
        self.cards: dict[str, Markup] = {}
        if self.path.is_file():
            for card in CARD.finditer(self.path.read_text(encoding="utf-8")):
                if (out / (page := unquote(card[1]))).is_file():
                    self.cards[page] = Markup(card[0])

    def add(self, page: Path, picture: Path, title: str, found: Explanation) -> None:
        """What the model says of the only image of `found`, and whether that is what its folder is called."""
        number = int(found.ranking[0, 0])
        folder = picture.resolve().parent.name
        self.cards.pop(page.name, None)  # what is explained again stands at the end
        self.cards[page.name] = macro("pieces.html", "picture_card")(
            page=page.name, title=title, image=thumbnail(found.images[0]), answer=found.classes[number],
            presence=float(found.presence[0, number]),
            folder=folder if folder in found.classes and folder != found.classes[number] else None,
        )  # fmt: skip

    def write(self) -> None:
        cards = list(self.cards.values())
        write_atomically(
            self.path,
            render("explanations.html", title="Explanations", cards=cards, seen_by=self.seen_by, key=self.key),
        )


def thumbnail(image: Tensor) -> str:
    """[c, h, w] in [0, 1] -> a small picture as text."""
    zoom = THUMBNAIL / max(image.shape[1:])
    if zoom < 1:
        size = [max(1, round(side * zoom)) for side in image.shape[1:]]
        image = torch.nn.functional.interpolate(image[None], size, mode="area")[0]
    return image_url((image.detach().cpu() * 255).round().to(torch.uint8).numpy())


def folder_key(weights: Path) -> str:
    """Whose pages a folder holds; it gives no path of the machine away."""
    return hashlib.sha256(os.fsencode(weights.resolve())).hexdigest()[:16]


def free_folder(out: Path, name: str, key: str) -> Path:
    """name, name-2, ...: the first that holds the pages of these very weights or is not there yet. Runs of two models
    are often called alike."""
    folders = (out / numbered for numbered in numbered_names(name))
    return next(folder for folder in folders if not (folder / NAME).exists() or has_key(folder / NAME, key))


def numbered_names(name: str) -> Iterator[str]:
    """name, name-2, name-3, ..."""
    return (name if number == 1 else f"{name}-{number}" for number in count(1))


def has_key(page: Path, key: str, within: int = 1000) -> bool:
    """Whether one of our pages carries this key in its first bytes."""
    try:
        with page.open("rb") as file:
            return f'content="{key}"'.encode() in file.read(within)
    except OSError:
        return False
