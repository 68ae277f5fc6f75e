"""Templates, charts, and pictures inside a page."""

import base64
import io
from xml.etree import ElementTree

import jinja2
import numpy as np
import pytest
from PIL import Image

from mspcaps.pages import PREFIX, Bar, image_url, macro, render, signed
from mspcaps.pages.charts import (
    Curve,
    Panel,
    bins_chart,
    confusion_chart,
    log_ticks,
    nice_ticks,
    panels_chart,
    percent_ticks,
)
from tests.pages.html_checks import assert_self_contained


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_picture_inside_a_page_keeps_every_pixel(channels):
    image = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    stored = Image.open(io.BytesIO(base64.b64decode(image_url(image).removeprefix(PREFIX))))
    wanted = image.transpose(1, 2, 0) if channels == 3 else image[0]
    assert np.array_equal(np.asarray(stored), wanted)


def test_the_frame_holds_style_and_title():
    html = render("base.html", title="a < b")
    assert "<title>a &lt; b</title>" in html and ":root {" in html
    assert_self_contained(html)


def test_templates_escape_what_they_are_given():
    html = macro("pieces.html", "bars")([Bar("<b>&", 0.5, "true"), Bar("'\"", 7.0), Bar("x", -1.0)])
    assert "&lt;b&gt;&amp;" in html and "<b>" not in html and "width:100.0%" in html and "width:0.0%" in html
    with pytest.raises(jinja2.UndefinedError):
        render("evaluation.html", title="a")


def test_charts():
    assert nice_ticks(74.5, 86.5) == [70, 75, 80, 85, 90]
    assert (percent_ticks(100.0, 100.0)[-1], percent_ticks(0.0, 0.0)[0], percent_ticks(81.0, 98.5)[-1]) == (100, 0, 100)
    assert nice_ticks(3.0, 3.0)[0] <= 3 <= nice_ticks(3.0, 3.0)[-1]
    assert log_ticks(0.09, 2.8) == pytest.approx([0.03, 0.1, 0.3, 1, 3])
    assert confusion_chart([[1, 0], [3, 0]], ["a", "b"]).count('<text class="count') == 2
    assert confusion_chart([[0] * 100 for _ in range(100)], ["x"] * 100).count("<g>") == 10_000


def test_the_bars_of_a_calibration():
    chart = ElementTree.fromstring(bins_chart([float("nan"), 0.0, 100.0, 50.0], "Accuracy", diagonal=True))
    bars = [(float(bar.get("x")), float(bar.get("y")), float(bar.get("height"))) for bar in chart.findall("rect")]
    assert bars == [(169.0, 228.0, 0.0), (279.0, 18.0, 210.0), (389.0, 123.0, 105.0)]


def test_curves_side_by_side():
    lines = [Curve("a < b", [(0.0, 90.0), (0.1, 40.0)]), Curve("c", [(0.0, 80.0), (0.05, 0.0)], 1, dashed=True)]
    steps = Panel("three", [Curve("d", [(0, 50.0), (1, 75.0), (2, 100.0)])], "z", ["none", "some", "all"])
    panels = [Panel("one", lines, "x"), Panel("two", lines[:1], "x"), *[steps] * 3]
    many = [Curve("n" * 50 + f"{i}", [(0.0, 1.0), (1.0, 2.0)]) for i in range(20)]
    crowded = ElementTree.fromstring(panels_chart([Panel("one", many, "x")] * 4, "many"))
    assert len({line.get("class") for line in crowded.iter("{http://www.w3.org/2000/svg}polyline")}) == 20
    words = [t for t in crowded.iter("{http://www.w3.org/2000/svg}text") if (t.text or "").startswith("nn")]
    assert len({t.get("y") for t in words if t.get("x") == "82"}) == 10, "two columns of ten long names"
    narrow = panels_chart([Panel("one", many, "x")], "many")
    assert f">{'n' * 40}…<" in narrow and f"{'n' * 50}0:" in narrow, "the whole name is in the title of the line"
    svg = ElementTree.fromstring(panels_chart(panels, "all & more", "y"))
    name = "{http://www.w3.org/2000/svg}%s"
    found, places = list(svg.iter(name % "polyline")), [g.get("transform") for g in svg.iter(name % "g")]
    assert places == [f"translate({x} {y})" for x, y in ((0, 0), (250, 0), (500, 0), (750, 0), (0, 210))]
    points = [[tuple(map(float, p.split(","))) for p in line.get("points", "").split()] for line in found]
    looks = ["line c0 d0", "line c1 d1", "line c0 d0", *["line c2 d2"] * 3]
    assert [line.get("class") for line in found] == looks and points[2] == points[0]
    (left, high), (right, low) = points[0]
    assert left < right and high < low, "eps grows to the right, accuracy upwards"
    assert points[3][1] == pytest.approx(
        [sum(pair) / 2 for pair in zip(points[3][0], points[3][2], strict=True)], abs=0.1
    )
    assert points[1][1][0] == pytest.approx((left + right) / 2, abs=0.1)
    texts = ["".join(text.itertext()) for text in svg.iter(name % "text")]
    assert {"one", "two", "three", "a < b", "c", "x", "y", "z", "some", "100"} <= set(texts)


def test_small_numbers_with_a_sign_are_not_rounded_to_nothing():
    assert [signed(v) for v in (0.25, -0.1, 3.0, 0.0137, -0.0031, 0.0, None)] == [
        "+0.25", "−0.10", "+3.00", "+0.014", "−0.0031", "+0.00", "+0.00"
    ]  # fmt: skip
