"""The quickstart: from nothing to the page, with a tiny recipe."""

import pytest

from mspcaps.data import Augmentation
from mspcaps.models import read_card
from mspcaps.quickstart import SHIPPED, quickstart, shipped
from mspcaps.training import Recipe


@pytest.mark.slow
def test_quickstart_writes_everything_below_its_folder(tmp_path):
    tiny = Recipe(
        model="mspcaps_t_scale16", data="fashionmnist_sample", name="tiny", epochs=1, batch_size=500, img_size=12,
        augment=Augmentation(),
    )  # fmt: skip
    done = quickstart(tmp_path / "quick", "cpu", recipe=tiny)
    assert done.weights.is_file()
    html = done.page.read_text()
    assert f"{done.evaluation.accuracy:.1f} %" in html
    assert html.count("<article") >= 10 and html.count('class="chart"') == 2 + 2  # how it learned, how sure it is
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick"]


@pytest.mark.slow
def test_shipped_weights_name_the_embedded_images_without_training(tmp_path):
    done = shipped(tmp_path, "cpu")
    card = read_card(SHIPPED)
    # the images are 1,000 of the card's 10,000: their accuracy lies within three standard errors of it
    error = (card.accuracy * (100 - card.accuracy) / done.evaluation.n) ** 0.5
    assert done.evaluation.n == 1000 and abs(done.evaluation.accuracy - card.accuracy) < 3 * error
    html = done.page.read_text()
    assert f"{done.evaluation.accuracy:.1f} %" in html and f"{card.accuracy:.2f} %" in html
    assert html.count('class="chart"') == 2 and html.count("<article") >= 10
    assert [path.name for path in tmp_path.iterdir()] == ["shipped.html"]
