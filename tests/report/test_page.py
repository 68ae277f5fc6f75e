"""The page: whole, self-contained, honest. The quickstart: from nothing to the page, with a tiny recipe."""

import re
from html.parser import HTMLParser

import pytest
import torch

from mspcaps.data import Augmentation, ImageSet
from mspcaps.evaluation import Evaluation
from mspcaps.models import read_card
from mspcaps.pages.charts import confusion_chart, log_ticks, nice_ticks, smoothed
from mspcaps.report.page import Page, card, choose_right, choose_wrong, confusion, render
from mspcaps.report.quickstart import SHIPPED, quickstart, shipped
from mspcaps.training import Epoch, Recipe

CLASSES = ("cat & dog", "<b>", "bird")


def evaluation() -> Evaluation:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.8, 0.2, 0.1], [0.1, 0.9, 0.0], [0.1, 0.2, 0.7], [0.6, 0.1, 0.5]])
    labels = torch.tensor([0, 0, 1, 2, 2])
    confusion = torch.tensor([[2, 0, 0], [0, 1, 0], [1, 0, 1]])
    return Evaluation(80.0, 5, 0.1, 70.0, 1.0, confusion, scores, labels, CLASSES)


def page(channels: int = 3) -> Page:
    data = ImageSet(torch.zeros(5, channels, 6, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 2, 2]), CLASSES, "toy")
    history = [Epoch(1, 0.1, 1.0, 60.0), Epoch(2, 0.1, 0.5, 80.0)]
    losses = [(i / 10, 1 / i) for i in range(1, 21)]
    return Page("a title", [("epochs", "2")], evaluation(), data, history, losses, [("do", "it")], "the end")


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    VOID = ("meta", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_page_is_whole_and_needs_nothing_else(channels):
    html = render(page(channels))
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"https?:|<script|<link|@import|url\(", html), "no request leaves the page"
    assert "80.0 %" in html
    assert "of 5 test images" in html
    assert "cat &amp; dog" in html
    assert "<b></text>" not in html, "class names are escaped"
    assert html.count("<article") == 3 + 1


def test_the_confusion_matrix_says_what_its_numbers_are():
    html = render(page())
    assert "Numbers count test images" in html and "Swipe the drawing sideways" in html
    many = Evaluation(
        0.0, 0, 0.0, 0.0, 0.0, torch.zeros(40, 40, dtype=torch.int64), torch.rand(1, 40), torch.tensor([0]), ("x",) * 40
    )
    assert "Numbers count" not in confusion(many), "so many classes leave no room for numbers"


def test_a_faultless_model_has_no_wrong_examples():
    found = evaluation()
    perfect = Evaluation(
        100.0, 4, 0.0, 90.0, 0.0, torch.diag(torch.tensor([2, 1, 1])), found.scores[:4], found.labels[:4], CLASSES
    )
    assert choose_wrong(perfect) == []
    assert "Wrong" not in render(Page(**{**vars(page()), "evaluation": perfect}))


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
    html = card(Page(**{**vars(page()), "evaluation": found}), 0)
    rows = re.findall(r"<dt([^>]*)>(\w)</dt>.*?<dd>([\d.]+)</dd>", html)
    true, false = ' class="true"', ' class="false"'
    assert rows == [(false, "a", "0.80"), ("", "b", "0.70"), ("", "c", "0.60"), (true, "f", "0.13")]
    assert "<h3>f<span>taken for a</span></h3>" in html


def test_charts():
    assert nice_ticks(74.5, 86.5) == [70, 75, 80, 85, 90]
    assert nice_ticks(3.0, 3.0)[0] <= 3 <= nice_ticks(3.0, 3.0)[-1]
    assert log_ticks(0.09, 2.8) == pytest.approx([0.03, 0.1, 0.3, 1, 3])
    assert smoothed([4.0, 2.0, 0.0, 0.0], 2) == [4.0, 3.0, 1.0, 0.0]
    assert confusion_chart([[1, 0], [3, 0]], ["a", "b"]).count('<text class="count') == 2
    assert confusion_chart([[0] * 100 for _ in range(100)], ["x"] * 100).count("<g>") == 10_000


def test_quickstart_writes_everything_below_its_folder(tmp_path):
    tiny = Recipe(
        model="mspcaps_t_scale16", data="fashionmnist_sample", name="tiny", epochs=1, batch_size=500, img_size=12,
        augment=Augmentation(),
    )  # fmt: skip
    steps = []
    done = quickstart(tmp_path / "quick", "cpu", lambda trainer: steps.append(trainer.steps_done), recipe=tiny)
    assert steps == [*range(1, 11), 0]
    assert done.weights.is_file()
    html = done.page.read_text()
    assert f"{done.evaluation.accuracy:.1f} %" in html
    assert html.count("<article") >= 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick"]


def test_shipped_weights_name_the_embedded_images_without_training(tmp_path):
    done = shipped(tmp_path, "cpu")
    card = read_card(SHIPPED)
    # the images are 1,000 of the card's 10,000: their accuracy lies within three standard errors of it
    error = (card.accuracy * (100 - card.accuracy) / done.evaluation.n) ** 0.5
    assert done.evaluation.n == 1000 and abs(done.evaluation.accuracy - card.accuracy) < 3 * error
    html = done.page.read_text()
    assert f"{done.evaluation.accuracy:.1f} %" in html and f"{card.accuracy:.2f} %" in html
    assert "How it learned" not in html and html.count("<article") >= 10
    assert [path.name for path in tmp_path.iterdir()] == ["shipped.html"]
