"""The page of an evaluation: whole, self-contained, honest."""

import re
from dataclasses import replace

import pytest
import torch
from mspcaps.evaluation.page import Page, choose_right, choose_wrong, make_example, render_page

from mspcaps.data import ImageSet
from mspcaps.evaluation import Evaluation
from tests.pages.html_checks import assert_self_contained

CLASSES = ("cat & dog", "<b>", "bird")


def evaluation() -> Evaluation:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.8, 0.2, 0.1], [0.1, 0.9, 0.0], [0.1, 0.2, 0.7], [0.6, 0.1, 0.5]])
    labels = torch.tensor([0, 0, 1, 2, 2])
    confusion = torch.tensor([[2, 0, 0], [0, 1, 0], [1, 0, 1]])
    return Evaluation(80.0, 5, 0.1, 70.0, 1.0, confusion, scores, labels, CLASSES)


def page(channels: int = 3) -> Page:
    data = ImageSet(torch.zeros(5, channels, 6, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 2, 2]), CLASSES, "toy")
    return Page("a title", [("epochs", "2")], evaluation(), data, [("do", "it")], "the end", [1.0, 0.5], [60.0, 80.0])


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
        0,
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
    assert render_page(page()).count('class="chart"') == 2
    assert render_page(replace(page(), losses=(), accuracies=())).count('class="chart"') == 0
