"""The page of an explanation: whole, self-contained, about the right classes; and the command that writes it."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mspcaps
from mspcaps.cli import main
from mspcaps.explanation import explain
from mspcaps.explanation.drawing import heat_drawing, rectangle
from mspcaps.explanation.files import free_page, page_key, page_name, shown_name
from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.page import choose_classes, closeness, render
from mspcaps.models import save_weights

CLASSES = ["cat & dog", "<b>bird</b>", "a very long name of a class"]


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def weights(path: Path, name: str = "mspcaps_t", channels: int = 3) -> Path:
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=3, in_chans=channels)
    save_weights(path, model, classes=CLASSES)
    return path


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("mspcaps_t", 3, (32, 32)), ("mspcaps_t", 1, (32, 48)), ("mspcaps_t_p2", 3, (16, 16)),
        ("mspcaps_t_p3", 2, (32, 32)), ("mspcaps_t_scale16", 3, (48, 32)), ("mspcaps_t_scale32_16", 3, (32, 32)),
    ],
)  # fmt: skip
def test_the_page_is_whole_and_needs_nothing_else(name, channels, size):
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=3, in_chans=channels, img_size=size)
    model.metadata = {"classes": CLASSES}
    html = render(explain(model, torch.rand(2, channels, *size)), 1, "<i>a</i>.png", name)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"https?:|<script|<link|@import|url\(", html), "no request leaves the page"
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in re.findall(r'href="([^"]*)', html))
    assert "<b>bird" not in html and "<i>a" not in html
    assert html.count('class="tree"') == 2 and "nan" not in re.sub(r"base64,[^\"]*", "", html)


def test_which_classes_it_is_about():
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t", num_classes=4), torch.rand(1, 3, 32, 32))
    first, second, third, _ = found.ranking[0].tolist()
    assert choose_classes(found, 0, None) == choose_classes(found, 0, first) == (first, second)
    assert choose_classes(found, 0, third) == (third, first)
    assert "This page asks why it could be" in render(found, 0, "a", "m", third)


def test_the_outlined_parts_have_the_largest_effects():
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t", num_classes=4), torch.rand(1, 3, 32, 32))
    parts, (fine, middle, coarse) = found.parts(), found.effects(int(found.ranking[0, 0]))
    assert [node.scale for node in parts] == [2, 1, 1, 1, 0, 0, 0]
    assert parts[0].index == int(coarse.argmax())
    assert [node.index for node in parts[1:4]] == middle[0].argsort(descending=True)[:3].tolist()
    for around, inner in zip(parts[1:4], parts[4:], strict=True):  # patches of 8 and of 4 pixels
        row, column = around.place
        cells = [(2 * row + r) * 8 + 2 * column + c for r in (0, 1) for c in (0, 1)]
        assert inner.index == max(cells, key=lambda cell: float(fine[0, cell]))
    two = explain(mspcaps.create_model("mspcaps_t_scale32_16", num_classes=4), torch.rand(1, 3, 32, 32))
    assert [node.scale for node in two.parts()] == [1, 0]


def test_outlines_fit_into_small_patches():
    assert '="-' not in rectangle(Rect(8, 4, 12, 8), "fine", width=6.0)


def test_names_of_pages():
    assert [page_name(Path(p)) for p in ("a.png", "../a.png", "cat/a.png", "/x/cat/a.b.png")] == [
        "a", "a", "cat-a", "cat-a.b",
    ]  # fmt: skip
    assert [shown_name(Path(p)) for p in ("a.png", "../a.png", "/x/cat/a.b.png")] == ["a.png", "a.png", "cat/a.b.png"]


def test_a_page_gives_way_to_the_same_picture_only(tmp_path, monkeypatch, capsys):
    path, out = weights(tmp_path / "w.safetensors"), tmp_path / "pages" / "w"
    for split in ("train", "test"):
        (tmp_path / split / "ship").mkdir(parents=True)
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / split / "ship" / "0.png")
    assert main(["explain", str(path), str(tmp_path / "train/ship/0.png"), "--out", str(tmp_path / "pages")]) == 0
    first = (out / "ship-0.html").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path / "test")  # the same picture by another path is the same picture
    for picture in ("ship/0.png", str(tmp_path / "test/ship/0.png")):
        assert main(["explain", str(path), picture, "--out", str(tmp_path / "pages")]) == 0
        assert "ship-0-2.html" in capsys.readouterr().out
    assert sorted(page.name for page in out.iterdir()) == ["ship-0-2.html", "ship-0.html"]
    assert (out / "ship-0.html").read_text(encoding="utf-8") == first
    assert ">ship/0.png, seen by w<" in first and str(tmp_path) not in first


def test_a_page_that_is_not_ours_is_left_alone(tmp_path):
    key = page_key(tmp_path / "a.png")
    assert free_page(tmp_path, "a", key) == tmp_path / "a.html"
    (tmp_path / "a.html").write_text("my own notes")
    (tmp_path / "a-2.html").mkdir()
    assert free_page(tmp_path, "a", key) == tmp_path / "a-3.html"


def test_a_long_name_of_a_picture_is_shortened_and_still_its_own():
    names = {page_name(Path("a" * 240 + letter + ".png")) for letter in "bc"}
    assert len(names) == 2 and all(len(name) < 200 for name in names)


def painted(heat, top):
    """The pixels [h, w, 4] that are laid over the image."""
    drawing = heat_drawing(heat, top, "x")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", drawing)[1]))))


def test_nothing_does_not_look_like_much():
    faint, strong = (painted(torch.full((8, 8), value), value)[..., 3].max() for value in (1e-9, 1.0))
    assert faint == 0 and strong > 200


def test_green_speaks_for_the_class_and_red_against_it():
    (speaks_for, against, nothing), *_ = painted(torch.tensor([[1.0, -0.5, 0.0]]), 1.0).astype(int)
    red, green, _, ink = speaks_for
    assert green > 2 * red and ink > 200
    red, green, _, less_ink = against
    assert red > 2 * green and 0 < less_ink < ink
    assert nothing[3] == 0


def test_words_for_the_distance():
    assert "far behind" in closeness(0.9, 0.1, "x") and "close behind" in closeness(0.9, 0.8, "x")
    assert "not sure" in closeness(0.2, 0.1, "x")


def test_the_command_writes_a_page_per_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = weights(tmp_path / "w.safetensors")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        Image.effect_noise((40, 30), 60).convert("RGB").save(tmp_path / folder / "a.png")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    status = main(["explain", str(path), "one", "broken.png", "two/a.png", "--out", "pages", "--class", CLASSES[0]])
    spoken = capsys.readouterr()
    assert status == 1, "one of them failed"
    written = sorted((tmp_path / "pages" / "w").iterdir())  # another model's pages go elsewhere
    assert [page.name for page in written] == ["one-a-cat___dog.html", "two-a-cat___dog.html"]
    assert "pages/w/one-a-cat___dog.html" in spoken.out and f"{CLASSES[0]} 0." in spoken.out
    assert "seen by w<" in written[0].read_text(encoding="utf-8")
    assert "broken.png" in spoken.err and "Traceback" not in spoken.err


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("mspcaps_t", ["a.png", "--class", "fish"], "there is no class 'fish'; the classes are cat & dog"),
        ("mspcaps_t", [], "name at least one picture|required"),
        ("mspcaps_t_dr", ["a.png"], "mspcaps_t_dr cannot be explained: explanations follow cross-agreement routing"),
        ("resnet20", ["a.png"], "resnet20 cannot be explained"),
    ],
)
def test_the_command_refuses_with_a_sentence(name, words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("a.png")
    assert main(["explain", str(weights(tmp_path / "w.safetensors", name)), *words]) == 2
    err = capsys.readouterr().err
    assert re.search(sentence, " ".join(err.split())) and "Traceback" not in err
    assert not (tmp_path / "runs").exists()
