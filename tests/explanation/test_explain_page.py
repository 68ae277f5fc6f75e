"""The page of an explanation: whole, self-contained, about the right classes; and the command that writes it."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from PIL import Image

import mspcaps
from mspcaps.capsules import DynamicRouting, RoutingState
from mspcaps.cli import main
from mspcaps.explanation import explain
from mspcaps.explanation.drawing import couplings_drawing, heat_colours, heat_drawing, rectangle
from mspcaps.explanation.files import display_name, free_page, key_of, page_name, write_pages
from mspcaps.explanation.geometry import Rect
from mspcaps.explanation.view import choose_classes, make_view, render_page
from mspcaps.models import save_weights
from mspcaps.pages import Bar
from tests.pages.html_checks import assert_self_contained

CLASSES = ["cat & dog", "<b>bird</b>", "a very long name of a class"]


def weights(path: Path, name: str = "mspcaps_t", channels: int = 3) -> Path:
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=3, in_chans=channels)
    save_weights(path, model, classes=CLASSES)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels", "size", "drawings"),
    [
        ("mspcaps_t", 3, (32, 32), "tree"), ("mspcaps_t", 1, (32, 48), "tree"), ("mspcaps_t_p2", 3, (16, 16), "tree"),
        ("mspcaps_t_p3", 2, (32, 32), "tree"), ("mspcaps_t_scale16", 3, (48, 32), "tree"),
        ("mspcaps_t_scale32_16", 3, (32, 32), "tree"), ("mspcaps_t_dr", 3, (32, 32), "couplings"),
        ("mspcaps_t_self", 3, (32, 32), "couplings"), ("resnet20", 3, (29, 21), ""),
        ("mspcaps_t_linear_margin", 3, (32, 32), ""), ("aa_capsnet", 3, (17, 18), ""),
        ("capsnet", 3, (17, 18), "couplings"), ("capsnet_cifar", 1, (6, 8), "couplings"),
        ("ar_capsnet", 3, (12, 12), "couplings"), ("da_capsnet", 1, (16, 16), "couplings"),
        ("deepcaps", 3, (12, 12), "couplings"), ("rs_capsnet", 3, (12, 12), "couplings"),
        ("idp_capsnet", 3, (13, 14), "couplings"), ("efficient_capsnet", 3, (17, 17), "couplings"),
        ("orthcaps_s", 3, (17, 18), "couplings"), ("orthcaps_d", 3, (4, 5), "couplings"),
        ("lacaps_t", 3, (32, 32), "tree"), ("lacaps_t", 1, (17, 26), "tree"), ("lacaps_t_linear", 3, (20, 20), ""),
    ],
)  # fmt: skip
def test_the_page_is_whole_and_needs_nothing_else(name, channels, size, drawings):
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=3, in_chans=channels, img_size=size)
    model.metadata = {"classes": CLASSES}
    html = render_page(explain(model, torch.rand(2, channels, *size)), 1, "<i>a</i>.png", name)
    assert_self_contained(html)
    assert "<b>bird" not in html and "<i>a" not in html
    for drawing in ("tree", "couplings"):
        assert html.count(f'class="{drawing}"') == (2 if drawing == drawings else 0)
    assert html.count('class="big"') == 3, "the parts and two heat maps"


def test_every_family_is_in_the_test_above():
    (marks,) = (m for m in test_the_page_is_whole_and_needs_nothing_else.pytestmark if m.name == "parametrize")
    families = {name for name in mspcaps.list_models() if not name.startswith(("mspcaps_", "resnet", "lacaps_"))}
    assert families <= {case[0] for case in marks.args[1]}


def test_which_classes_it_is_about():
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t", num_classes=4), torch.rand(1, 3, 32, 32))
    first, second, third, _ = found.ranking[0].tolist()
    assert choose_classes(found, 0, None) == choose_classes(found, 0, first) == (first, second)
    assert choose_classes(found, 0, third) == (third, first)
    view = make_view(found, 0, third)
    assert [side.label for side in view.sides] == [third, first]
    assert (view.answer.name, view.runner_up.name) == (str(first), str(second))
    assert [bar.kind for bar in view.bars] == ["true", "", "other", ""]


def test_of_many_classes_the_longest_and_the_asked_for_are_listed():
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t_scale8", num_classes=30), torch.rand(1, 3, 32, 32))
    last = int(found.ranking[0, -1])
    view = make_view(found, 0, last)
    assert [bar.name for bar in view.bars] == [str(k) for k in (*found.ranking[0, :20].tolist(), last)]
    assert view.left_out == 9


@pytest.mark.slow
def test_the_view_says_what_the_bars_are():
    x = torch.rand(1, 3, 32, 32)
    for name, unit in (
        ("mspcaps_t_scale8", "length"),
        ("mspcaps_t_linear_margin", "score"),
        ("resnet20", "probability"),
    ):
        assert make_view(explain(mspcaps.create_model(name), x)).unit == unit


def test_couplings_are_drawn_beside_what_they_would_be_if_equal():
    couplings = torch.tensor([0.1, 0.6, 0.3]).view(3, 1, 1)
    state = RoutingState(("input",), (torch.ones(3, 1, 1, 2),), couplings, couplings, 0, torch.ones(1, 1, 2))
    drawing = couplings_drawing(state, 0, 0)
    heights = [float(place) for place in re.findall(r"V([\d.]+)h", drawing)]
    assert heights == pytest.approx([0, 60, 100])
    assert float(re.search(r'y1="([\d.]+)', drawing)[1]) == pytest.approx(120 * (1 - 1 / 1.8), abs=0.1)


@pytest.mark.parametrize("leaky", [False, True])
def test_couplings_of_routing_that_made_no_difference_lie_on_the_line_of_equal_ones(leaky):
    states: list[RoutingState] = []
    DynamicRouting(6, 4, 3, 5, iterations=1, leaky=leaky)(torch.rand(1, 6, 4), states)
    (state,) = states
    assert state.equal_coupling == pytest.approx(state.couplings[0, 0, 0].item())
    assert float(re.search(r'y1="([\d.]+)', couplings_drawing(state, 0, 0))[1]) == 0


@pytest.mark.parametrize("name", ["mspcaps_t_scale16", "lacaps_t", "efficient_capsnet", "da_capsnet", "ar_capsnet"])
def test_what_a_page_calls_a_length_before_squash_is_one(name):
    torch.manual_seed(0)
    found = explain(mspcaps.create_model(name, num_classes=3, img_size=14), torch.rand(1, 3, 14, 14))
    state = found.routing[-1]
    before = (state.couplings.unsqueeze(-1) * state.votes[-1]).sum(0).norm(dim=-1)  # [b, j]
    is_one = torch.allclose(found.evidence, before, rtol=1e-3)
    assert ("before squash" in render_page(found, 0, "a.png", name)) <= is_one


def test_the_outlined_parts_are_the_strongest_in_the_map_that_is_drawn(monkeypatch):
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t", num_classes=4), torch.rand(1, 3, 32, 32))
    drawn = []
    monkeypatch.setattr("mspcaps.explanation.view.heat_drawing", lambda heat, *_: drawn.append(heat))
    make_view(found)
    heat = drawn[0].numpy()  # of the predicted class
    means = {side: heat.reshape(32 // side, side, 32 // side, side).mean((1, 3)).ravel() for side in (4, 8, 16)}
    parts = found.parts()
    assert [node.scale for node in parts] == [2, 1, 1, 1, 0, 0, 0]
    assert parts[0].index == means[16].argmax()
    assert [node.index for node in parts[1:4]] == np.argsort(-means[8])[:3].tolist()
    for around, inner in zip(parts[1:4], parts[4:], strict=True):  # patches of 8 and of 4 pixels
        row, column = around.place
        cells = [(2 * row + r) * 8 + 2 * column + c for r in (0, 1) for c in (0, 1)]
        assert inner.index == max(cells, key=lambda cell: means[4][cell])
        assert inner.heat == pytest.approx(16 * float(means[4][inner.index]), rel=1e-4)
    two = explain(mspcaps.create_model("mspcaps_t_scale32_16", num_classes=4), torch.rand(1, 3, 32, 32))
    assert [node.scale for node in two.parts()] == [1, 0]


@pytest.mark.slow
def test_a_line_of_the_tree_has_the_sign_of_its_number():
    torch.manual_seed(0)
    found = explain(mspcaps.create_model("mspcaps_t", num_classes=4, img_size=48), torch.rand(1, 3, 48, 48))
    for label in range(4):
        drawing = make_view(found, 0, label).sides[0].tree
        kinds = re.findall(r'<path class="edge (\w+)"', drawing)
        numbers = re.findall(r'<text class="value"[^>]*>[^<]*?([+−])[\d.]+<', drawing)
        assert len(kinds) == len(numbers) > 8
        assert kinds == ["for" if sign == "+" else "against" for sign in numbers]


def luminance(colours: torch.Tensor) -> torch.Tensor:
    """As seen over the grey of an even picture, by the formula of sRGB."""
    shown = colours[..., :3] / 255 * colours[..., 3:] / 255 + 0.7 * (1 - colours[..., 3:] / 255)
    return shown.pow(2.2) @ torch.tensor([0.2126, 0.7152, 0.0722])


def test_colours_of_a_heat_map_can_be_read_without_colour():
    """The stronger, the darker; and for and against are apart in blue, which those who confuse red and green see."""
    colours = heat_colours(torch.linspace(-1, 1, 201)).float()
    assert int(colours[100, 3]) == 0, "no ink where there is no effect"
    for half in (colours[100:], colours[:101].flip(0)):
        assert bool((half[:, 3].diff() >= 0).all())
        assert bool((luminance(half)[20:].diff() < 0).all())
    assert float((colours[:81, 2] - colours[120:, 2].flip(0)).min()) > 60


def test_outlines_fit_into_small_patches():
    assert '="-' not in rectangle(Rect(8, 4, 12, 8), "fine", width=6.0)


def test_names_of_pages():
    assert [page_name(Path(p)) for p in ("a.png", "../a.png", "cat/a.png", "/x/cat/a.b.png")] == [
        "a", "a", "cat-a", "cat-a.b",
    ]  # fmt: skip
    assert [display_name(Path(p)) for p in ("a.png", "../a.png", "/x/cat/a.b.png")] == ["a.png", "a.png", "cat/a.b.png"]


def links(index: Path) -> list[str]:
    """The pages that an index links to; each is there, and the index needs nothing else."""
    html = index.read_text(encoding="utf-8")
    assert_self_contained(re.sub(r'(<a class="card") href="[^"]+"', r"\1", html))
    pages = [unquote(page) for page in re.findall(r'<a class="card" href="([^"]+)"', html)]
    assert all((index.parent / page).is_file() for page in pages)
    return pages


@pytest.mark.slow
def test_the_index_of_a_folder(tmp_path, monkeypatch):
    """Odd names, a folder called like a class, a page that is gone, a picture that is explained again."""
    path, pictures, out = weights(tmp_path / "w.safetensors"), tmp_path / CLASSES[1].strip("<b>/"), tmp_path / "pages"
    names = ["a#1%20.png", "b & 'c' \"d\".png", "index.png", "z.png"]
    for folder in (pictures, tmp_path / CLASSES[0]):
        folder.mkdir()
        for name in names:
            Image.effect_noise((200, 100), 60).convert("RGB").save(folder / name)
    monkeypatch.chdir(tmp_path)
    plain = Path("index.png")
    Image.new("L", (32, 32)).save(plain)
    done = list(write_pages(path, [tmp_path / CLASSES[0], pictures, plain], out))
    assert [one.error for one in done] == [None] * 9
    index = out / "w" / "index.html"
    assert links(index) == [one.page.name for one in done] and done[-1].page.name == "index-2.html"
    html = index.read_text(encoding="utf-8")
    thumbnails = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"base64,([^\"]+)", html)]
    assert {image.size for image in thumbnails} == {(32, 32)}, "no larger than what the model sees"
    answers = [one.answer.rpartition(" ")[0] for one in done[:4]]
    assert html.count("in the folder") == sum(answer != CLASSES[0] for answer in answers)
    done[0].page.unlink()
    list(write_pages(path, [done[1].picture], out))
    assert links(index) == [one.page.name for one in (*done[2:], done[1])]


@pytest.mark.slow
def test_equally_named_runs_have_folders_of_their_own(tmp_path):
    Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / "a.png")
    runs = [tmp_path / model / "custom-seed0" / "last.safetensors" for model in ("mspcaps_t_dr", "mspcaps_t_scale8")]
    for run in runs:
        weights(run, run.parts[-3])
    folders = [one.page.parent for run in (*runs, *runs) for one in write_pages(run, [tmp_path / "a.png"], tmp_path)]
    names = ["mspcaps_t_dr-custom-seed0", "mspcaps_t_scale8-custom-seed0"]
    assert folders == [tmp_path / name for name in names * 2]
    assert names[1] in (folders[1] / "index.html").read_text(encoding="utf-8")


def test_the_index_is_there_when_the_rest_is_given_up(tmp_path):
    for name in "abc":
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / f"{name}.png")
    pages = write_pages(weights(tmp_path / "w.safetensors", "mspcaps_t_scale8"), [tmp_path], tmp_path / "out")
    next(pages)
    pages.close()
    assert len(links(tmp_path / "out" / "w" / "index.html")) == 1


@pytest.mark.slow
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
    assert sorted(page.name for page in out.iterdir()) == ["index.html", "ship-0-2.html", "ship-0.html"]
    assert links(out / "index.html") == ["ship-0.html", "ship-0-2.html"]
    assert (out / "ship-0.html").read_text(encoding="utf-8") == first
    assert ">ship/0.png, seen by mspcaps_t, w<" in first and str(tmp_path) not in first


def test_a_page_that_is_not_ours_is_left_alone(tmp_path):
    key = key_of(tmp_path / "a.png")
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


def test_orange_speaks_for_the_class_and_blue_against_it():
    (speaks_for, against, nothing), *_ = painted(torch.tensor([[1.0, -0.5, 0.0]]), 1.0).astype(int)
    red, _, blue, ink = speaks_for
    assert red > 2 * blue and ink > 200
    red, _, blue, less_ink = against
    assert blue > 2 * red and 0 < less_ink < ink
    assert nothing[3] == 0


def test_words_for_the_distance():
    view = make_view(explain(mspcaps.create_model("mspcaps_t_scale8"), torch.rand(1, 3, 32, 32)))
    words = [
        replace(view, answer=Bar("a", first), runner_up=Bar("b", second)).closeness
        for first, second in ((0.9, 0.1), (0.9, 0.5), (0.9, 0.8), (0.0, 0.0))
    ]
    assert words == ["far behind", "behind", "close behind", "far behind"]


@pytest.mark.slow
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
    assert [page.name for page in written] == ["index.html", "one-a-cat___dog.html", "two-a-cat___dog.html"]
    assert links(written[0]) == ["one-a-cat___dog.html", "two-a-cat___dog.html"] and "pages/w/index.html" in spoken.out
    assert "pages/w/one-a-cat___dog.html" in spoken.out and f"{CLASSES[0]} 0." in spoken.out
    assert "broken.png" in spoken.err and "Traceback" not in spoken.err


@pytest.mark.parametrize(
    ("words", "offending"), [(["a.png", "--class", "fish"], "'fish'.*cat & dog"), ([], "picture|required")]
)
def test_the_command_refuses_with_a_sentence(words, offending, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("a.png")
    assert main(["explain", str(weights(tmp_path / "w.safetensors")), *words]) == 2
    err = capsys.readouterr().err
    assert re.search(offending, " ".join(err.split())) and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mspcaps_t_dr", "resnet20"])
def test_the_command_explains_models_without_a_tree(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((32, 32), 60).convert("RGB").save("a.png")
    assert main(["explain", str(weights(tmp_path / "w.safetensors", name)), str(tmp_path / "a.png")]) == 0
    _, page = sorted((tmp_path / "runs" / "explain" / "w").iterdir(), key=lambda page: page.name != "index.html")
    html = page.read_text(encoding="utf-8")
    assert html.count('class="big"') == 3 and 'class="tree"' not in html
