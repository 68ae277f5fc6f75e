"""The generated drawings of docs/: they are up to date, and their numbers are those of the routing."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mspcaps
from tools import drawings

DOCS = Path(__file__).parents[2] / "docs"
PNG = re.compile(r'data:image/png;base64,([^"]+)')
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def stored(name: str) -> str:
    return (DOCS / f"{name}.svg").read_text(encoding="utf-8")


def pixels(svg: str) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(png)))) for png in PNG.findall(svg)]


@pytest.mark.parametrize(
    ("name", "draw"), [("architecture", drawings.draw_architecture), ("cross_agreement", drawings.draw_cross_agreement)]
)
def test_it_is_what_the_script_draws(name: str, draw: Any) -> None:
    """Last digits, and how a PNG is packed, may differ between machines."""
    now, before = draw(), stored(name)
    again = "run `make regenerate`"
    assert NUMBER.sub("#", PNG.sub("", now)) == NUMBER.sub("#", PNG.sub("", before)), again
    for new, old in zip(*(NUMBER.findall(PNG.sub("", svg)) for svg in (now, before)), strict=True):
        last = 10.0 ** -len(old.partition(".")[2]) if "." in old else 0
        assert abs(float(new) - float(old)) <= 1.01 * last, again
    assert all(np.array_equal(*pair) for pair in zip(pixels(now), pixels(before), strict=True)), again


@torch.no_grad()
def test_the_routing_has_the_drawn_numbers() -> None:
    svg = stored("cross_agreement")

    def shown(kind: str) -> list[float]:
        values = re.findall(rf'<text class="{kind}"[^>]*>([^<]*)<', svg)
        return [float(words.replace("−", "-")) for words in values]

    model: Any = mspcaps.create_model("mspcaps_t", num_classes=10, in_chans=1, pretrained="fashionmnist").eval()
    image, k = mspcaps.load_dataset("fashionmnist_sample", "test").images[drawings.IMAGE][None] / 255, drawings.PLACE
    u1, u2, _ = model.forward_features(image)
    routing = model.routing[0]
    (rows, columns), r = routing.coarse, routing.fine[0] // routing.coarse[0]
    assert (rows, columns, r) == (4, 4, 2)

    def agreements(k: int, j: int) -> list[float]:
        """A plain loop: the r x r fine capsules under place k, one after the other."""
        coarse, values = u2[0, k] @ routing.w2[k, :, j], []
        for row in range(k // columns * r, k // columns * r + r):
            for column in range(k % columns * r, k % columns * r + r):
                fine = u1[0, row * routing.fine[1] + column] @ routing.w2[k, :, j]
                values.append(float(fine @ coarse) / len(coarse) ** 0.5)
        return values

    here = [agreements(k, j) for j in drawings.PARENTS]
    assert shown("agreement") == pytest.approx([value for one in here for value in one], abs=0.06)
    assert shown("best said") == shown("maxima said") == pytest.approx([max(one) for one in here], abs=0.06)
    places = [torch.tensor([max(agreements(place, j)) for place in range(rows * columns)]) for j in drawings.PARENTS]
    couplings = [best.softmax(0)[k].item() for best in places]
    assert shown("couplings said") == pytest.approx(couplings, abs=0.006)
    assert couplings[0] > 0.5 and couplings[-1] < 0.01, "docs/paper.md says so in words"
