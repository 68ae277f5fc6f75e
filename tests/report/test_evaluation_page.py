"""The page of an evaluation: whole, self-contained, honest."""

import re
from dataclasses import replace

import pytest
import torch
from PIL import Image

from mspcaps.data import FolderImages, ImageSet
from mspcaps.evaluation import Evaluation
from mspcaps.evaluation.accuracy import all_scores, measure
from mspcaps.models import create_model
from mspcaps.report import mistakes
from mspcaps.report.evaluation import (
    Page,
    choose_right,
    choose_wrong,
    make_example,
    render_page,
    summary,
    write_page,
)
from mspcaps.report.run import MAX_IMAGES, sample_images
from mspcaps.training import Epoch
from tests.pages.html_checks import assert_self_contained

CLASSES = ("cat & dog", "<b>", "bird")


def evaluation() -> Evaluation:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.8, 0.2, 0.1], [0.1, 0.9, 0.0], [0.1, 0.2, 0.7], [0.6, 0.1, 0.5]])
    labels = torch.tensor([0, 0, 1, 2, 2])
    confusion = torch.tensor([[2, 0, 0], [0, 1, 0], [1, 0, 1]])
    return Evaluation(80.0, 5, 0.1, 70.0, 1.0, confusion, scores, labels, CLASSES)


def page(channels: int = 3) -> Page:
    data = ImageSet(torch.zeros(5, channels, 6, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 2, 2]), CLASSES, "toy")
    history = [Epoch(1, 0.1, 1.0, 60.0), Epoch(2, 0.1, 0.5, 80.0)]
    return Page("a title", [("epochs", "2")], evaluation(), data, [("do", "it")], "the end", history)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_page_is_whole_and_needs_nothing_else(channels):
    html = render_page(page(channels))
    assert_self_contained(html)
    assert "80.0 %" in html
    assert "of 5 test images" in html
    assert "cat &amp; dog" in html
    assert "<b></text>" not in html, "class names are escaped"
    assert html.count("<article") == 3 + 1


def test_the_confusion_matrix_says_what_its_numbers_are():
    assert 'class="count' in render_page(page()) and 'class="swipe"' in render_page(page())
    many = Evaluation(
        0.0,
        1,
        0.0,
        0.0,
        0.0,
        torch.eye(40, dtype=torch.int64),
        torch.rand(1, 40),
        torch.tensor([0]),
        tuple(map(str, range(40))),
    )
    crowded = render_page(replace(page(), evaluation=many))
    assert 'class="count' not in crowded, "so many classes leave no room for numbers"


def test_a_faultless_model_has_no_wrong_examples():
    found = evaluation()
    perfect = Evaluation(
        100.0, 4, 0.0, 90.0, 0.0, torch.diag(torch.tensor([2, 1, 1])), found.scores[:4], found.labels[:4], CLASSES
    )
    assert choose_wrong(perfect) == []
    assert render_page(replace(page(), evaluation=perfect)).count("<article") == 3


def test_which_examples_are_shown():
    assert choose_right(evaluation()) == [0, 2, 3]
    assert choose_wrong(evaluation()) == [4]


def test_the_example_of_a_class_is_neither_the_easiest_nor_the_hardest():
    """The first capsule has 0.9, 0.6 and 0.7 of all length; the last image is named wrongly."""
    scores = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    found = Evaluation(
        75.0, 4, 0.1, 70.0, 1.0, torch.tensor([[3, 1], [0, 0]]), scores, torch.zeros(4).long(), ("a", "b")
    )
    assert choose_right(found) == [2]


def test_the_true_class_is_shown_however_short_its_capsule():
    scores, names = torch.tensor([[0.8, 0.7, 0.6, 0.5, 0.4, 0.13]]), tuple("abcdef")
    found = Evaluation(0.0, 1, 0.1, 70.0, 1.0, torch.eye(6).long(), scores, torch.tensor([5]), names)
    example = make_example(replace(page(), evaluation=found), 0)
    assert (example.true, example.answer) == ("f", "a")
    assert [(bar.name, bar.kind) for bar in example.bars] == [("a", "false"), ("b", ""), ("c", ""), ("f", "true")]
    assert [bar.value for bar in example.bars] == pytest.approx([0.8, 0.7, 0.6, 0.13])
    html = render_page(replace(page(), evaluation=found))
    assert re.search(r'<dt class="true" title="f">f</dt>', html) and "taken for a" in html


def test_curves_are_shown_where_there_are_any():
    bins = 2  # charts of the calibration
    assert render_page(page()).count('class="chart"') == 2 + bins
    assert render_page(replace(page(), history=())).count('class="chart"') == bins
    validated = [replace(row, validation=50.0) for row in page().history]
    assert render_page(replace(page(), history=validated)).count('class="chart"') == 3 + bins


def made(k: int, n: int, name: str = "resnet20", size: int = 16) -> tuple[torch.nn.Module, Page]:
    """Random images of k classes, some without images, and a model without training."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, k - k // 4, (n,), generator=generator)
    classes = tuple(f"<{i}> & “{i}”, a name as long as some folders have" for i in range(k))
    torch.manual_seed(0)
    model = create_model(name, num_classes=k, img_size=size).eval()
    model.metadata = {"classes": list(classes)}
    images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)
    found = measure(model, all_scores(model, images, 100), labels, classes)
    return model, Page("t", [], found, ImageSet(images, labels, classes, "toy"), [], "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "name"), [(2, "resnet20"), (3, "mspcaps_t_scale16"), (41, "resnet20"), (1000, "resnet20")]
)
def test_pages_of_any_number_of_classes_and_any_model(k, name, tmp_path, monkeypatch):
    explained = int(k < 1000)  # it would take long
    monkeypatch.setattr(mistakes, "MAX_EXPLAINED", explained)
    monkeypatch.setattr(mistakes, "MAX_SECONDS", 60)
    model, about = made(k, max(20, 2 * k), name)
    html = write_page(tmp_path / "page.html", about, model).read_text()
    assert_self_contained(html)
    assert html.count("<article") == len(choose_right(about.evaluation)) + len(choose_wrong(about.evaluation))
    assert html.count('class="three"') == explained
    ids = re.findall(r' id="([^"]*)"', html)
    assert {*re.findall(r'href="#([^"]*)"', html)} <= {*ids} and len({*ids}) == len(ids)
    assert ('class="confusion"' in html) == (k <= 40)
    assert len(html) < 1_500_000


@pytest.mark.slow
def test_what_is_explained_is_the_answer_of_the_page(monkeypatch):
    """The mean over an image and its mirror image may be an answer that the model gives to neither."""
    monkeypatch.setattr(mistakes, "MAX_SECONDS", 60)
    model, about = made(3, 20)
    wrong, own = choose_wrong(about.evaluation), about.evaluation.predictions
    answers = [int(own[i]) if i == wrong[0] else (y + 1) % 3 for i, y in enumerate(about.data.labels.tolist())]
    told = measure(model, torch.eye(3)[torch.tensor(answers)], about.data.labels, about.data.classes)
    same = {i for i in range(6) if told.predictions[i] == own[i] != told.labels[i]}
    assert {*mistakes.explain_mistakes(model, about.data, told, range(6))} == same and 0 < len(same) < 6


def test_an_explanation_that_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(mistakes, "MAX_SECONDS", 0.0)
    model, about = made(3, 20)
    assert mistakes.explain_mistakes(model, about.data, about.evaluation, [0, 1]) == {}
    assert mistakes.explain_mistakes(torch.nn.Identity(), about.data, about.evaluation, [0, 1]) == {}


def test_the_page_of_a_run_is_about_at_most_so_many_images(monkeypatch, tmp_path):
    few = ImageSet(torch.zeros(9, 1, 2, 2, dtype=torch.uint8), torch.zeros(9).long(), ("a", "b"), "few")
    assert sample_images(few) is few
    n = MAX_IMAGES + 5
    many = ImageSet(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), torch.arange(n), tuple(map(str, range(n))), "many")
    one, other = sample_images(many), sample_images(many)
    assert len(one) == MAX_IMAGES == len(one.labels.unique()) and torch.equal(one.labels, other.labels)
    monkeypatch.setattr("mspcaps.report.run.MAX_IMAGES", 3)
    for i in range(5):
        Image.new("L", (4, 4), 40 * i).save(tmp_path / f"{i}.png")
    paths = tuple(str(tmp_path / f"{i}.png") for i in range(5))
    read = sample_images(FolderImages(paths, (0, 1, 2, 3, 4), tuple("abcde"), "folder", (4, 4), 1))
    assert len(read) == 3 and read.images[:, 0, 0, 0].tolist() == [40 * int(label) for label in read.labels]


def test_the_page_compares_with_the_most_frequent_class():
    """Of 6 images 5 are of one class: who always says so is right on 83 %, not on a half."""
    rows, labels = torch.tensor([[3, 2], [0, 1]]), torch.tensor([0, 0, 0, 0, 0, 1])
    found = Evaluation(66.7, 6, 0.1, 70.0, 1.0, rows, torch.rand(6, 2), labels, ("frequent", "rare"))
    assert "“frequent” would reach 83 %" in summary(found)
    even = replace(found, confusion=torch.tensor([[2, 1], [1, 2]]))
    assert "50 %" in summary(even)
