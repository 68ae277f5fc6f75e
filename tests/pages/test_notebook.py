"""What notebooks show: small, self-contained, escaped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from html_checks import assert_self_contained

from mspcaps import create_model, evaluate, explain, predict, train
from mspcaps.evaluation import Prediction, Predictions
from mspcaps.explanation.drawing import float_image_url, pale_grey
from mspcaps.pages.notebook import small_table, sparkline
from mspcaps.training import Recipe


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = create_model("mspcaps_t_scale16", num_classes=3, in_chans=1, img_size=16).eval()
    made.metadata = {"classes": ["a <i>", "b & c", "d"]}
    return made


def check(html: str, most: int = 30_000) -> None:
    assert_self_contained(html)
    assert len(html) < most


def test_predictions(model: torch.nn.Module) -> None:
    found = predict(model, torch.rand(60, 1, 16, 16))
    check(found._repr_html_())
    assert "a &lt;i&gt;" in found._repr_html_() and found._repr_html_().count("<tr>") == 51
    assert "10 more" in found._repr_html_()
    assert "why" in Predictions([Prediction(Path("x/y.png"), error="why")])._repr_html_()


def test_evaluations(model: torch.nn.Module) -> None:
    found = evaluate(model, (torch.rand(12, 1, 16, 16), torch.arange(12) % 2))
    html = found._repr_html_()
    check(html)
    assert f"{found.accuracy:.2f} % of 12" in html and "b &amp; c" in html and ">-<" in html
    assert all(f"{value:.2f} %" in html for value in found.per_class[:2])


def test_explanations(model: torch.nn.Module) -> None:
    found = explain(model, torch.rand(10, 1, 16, 16))
    html = found._repr_html_()
    check(html)
    assert html.count("<img") == 8 and "2 more" in html and "all_effects" not in vars(found), "nothing slow is begun"
    found = explain(model, torch.rand(1, 1, 16, 16))
    before = found._repr_html_().count("data:image")
    found.heat_map(0)
    check(found._repr_html_())
    html = found._repr_html_()
    assert html.count("data:image") == before + 2
    assert float_image_url(pale_grey(found.images[0])) in html, "dark colours need the pale background of the pages"


def test_results(tmp_path: Path) -> None:
    images, labels = np.random.default_rng(0).integers(0, 255, (8, 16, 16)).astype(np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    recipe = Recipe(model="mspcaps_t_scale16", data=str(tmp_path / "d.npz"), epochs=12, batch_size=8, img_size=16)
    found = train(recipe, device="cpu", out=tmp_path, results=tmp_path, progress=False)
    html = found._repr_html_()
    check(html)
    assert html.count("<tr>") == 11 and f"{found.history[-1].accuracy:.2f} %" in html and html.count("<polyline") == 2


def test_pieces() -> None:
    assert small_table(("x",), [("<",)]).count("&lt;") == 1
    assert 'points="2.0,34.0 80.0,2.0 158.0,18.0"' in sparkline([0, 2, 1], "curve")
    assert 'points="2.0,34.0"' in sparkline([5.0], "curve")
