"""Natural change: every change against a plain loop, and the accuracy, the entry and the figure made of them."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import ShiftResult, evaluate_shifts, write_shifts
from mspcaps.evaluation.shift_results import list_shifts, read_shifts
from mspcaps.evaluation.shifts import CHANGES, ShiftEvaluation, rotate, shift, warp

IMAGES = torch.rand(6, 3, 9, 11, generator=torch.Generator().manual_seed(0))
Loop = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def sample(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """The colours [c] at a point, bilinear, black outside: image [c, h, w]."""
    found = np.zeros(len(image))
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                found += image[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return found


def through(image: np.ndarray, back: Callable[[float, float], tuple[float, float]]) -> np.ndarray:
    """`back` says where a point comes from; both are counted from the centre, rows downwards."""
    out, (_, h, w) = np.zeros_like(image), image.shape
    for i in range(h):
        for j in range(w):
            y, x = back(i - (h - 1) / 2, j - (w - 1) / 2)
            out[:, i, j] = sample(image, y + (h - 1) / 2, x + (w - 1) / 2)
    return out


def loop_rotation(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    a = float(draw) * math.radians(strength)
    return through(image, lambda y, x: (y * math.cos(a) + x * math.sin(a), x * math.cos(a) - y * math.sin(a)))


def loop_shift(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    out, (_, h, w) = np.zeros_like(image), image.shape
    down, right = round(strength * h * math.sin(draw)), round(strength * w * math.cos(draw))
    for i in range(h):
        for j in range(w):
            if 0 <= i - down < h and 0 <= j - right < w:
                out[:, i, j] = image[:, i - down, j - right]
    return out


def loop_scale(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    factor = 1 + strength if draw > 0 else 1 / (1 + strength)
    return through(image, lambda y, x: (y / factor, x / factor))


def loop_shear(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    return through(image, lambda y, x: (y, x + draw * strength * y))


def loop_noise(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    return np.clip(image + strength * draw, 0, 1)


def loop_blur(image: np.ndarray, _: np.ndarray, strength: float) -> np.ndarray:
    out, (_, h, w) = np.zeros_like(image), image.shape
    sigma = strength * min(h, w)
    reach = math.ceil(3 * sigma)
    for i in range(h):
        for j in range(w):
            total = 0.0
            for a in range(-reach, reach + 1):
                for b in range(-reach, reach + 1):
                    weight = math.exp(-(a * a + b * b) / (2 * sigma * sigma))
                    total += weight
                    out[:, i, j] += weight * image[:, min(max(i + a, 0), h - 1), min(max(j + b, 0), w - 1)]
            out[:, i, j] /= total
    return out


def loop_occlusion(image: np.ndarray, draw: np.ndarray, strength: float) -> np.ndarray:
    out, (_, h, w) = image.copy(), image.shape
    tall, wide = round(strength * h), round(strength * w)
    top, left = int(draw[0] * (h - tall + 1)), int(draw[1] * (w - wide + 1))
    for channel in range(len(image)):
        out[channel, top : top + tall, left : left + wide] = image[channel].mean()
    return out


def loop_contrast(image: np.ndarray, _: np.ndarray, strength: float) -> np.ndarray:
    return image.mean() + (1 - strength) * (image - image.mean())


LOOPS: dict[str, Loop] = {
    "rotation": loop_rotation, "shift": loop_shift, "scale": loop_scale, "shear": loop_shear, "noise": loop_noise,
    "blur": loop_blur, "occlusion": loop_occlusion, "contrast": loop_contrast,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_that_of_a_loop(name: str) -> None:
    change = CHANGES[name]
    draws = change.draws(IMAGES, seed=3)
    assert list(LOOPS) == list(CHANGES) and sorted(change.strengths) == list(change.strengths)
    for strength in (change.strengths[2], change.strengths[-1]):
        found = change(IMAGES, strength, seed=3)
        for image, draw, mine in zip(IMAGES.double().numpy(), draws.double().numpy(), found.numpy(), strict=True):
            np.testing.assert_allclose(mine, LOOPS[name](image, draw, strength), atol=2e-6)
        assert found.shape == IMAGES.shape and found.min() >= 0 and found.max() <= 1
        assert not torch.equal(found, IMAGES)
    assert torch.equal(change(IMAGES, 0.0), IMAGES), "strength 0 changes nothing"


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_depends_on_the_seed_and_the_number_of_the_image_alone(name: str) -> None:
    change = CHANGES[name]
    images = IMAGES[:1].expand(240, -1, -1, -1)
    strength = change.strengths[2]
    torch.manual_seed(1)
    whole = change(images, strength, seed=7)
    torch.manual_seed(2)
    parts = [change(images[start : start + 70], strength, seed=7, first=start) for start in range(0, 240, 70)]
    assert torch.equal(whole, torch.cat(parts))
    drawn = change.draws(images, 7).numel() > 0
    assert torch.equal(whole, change(images, strength, seed=8)) != drawn
    assert (whole == whole[:1]).all() != drawn, "each image has its own draw"
    shown = change((images * 255).to(torch.uint8), strength, seed=7)
    assert (shown - whole).abs().max() < 0.01 and shown.dtype == torch.float32, "uint8 images too"


def test_a_quarter_turn_and_whole_pixels_are_exact() -> None:
    square = IMAGES[:, :, :9, :9]
    for side in (1, -1):
        turned = rotate(square, torch.full((6,), float(side)), 90.0)
        torch.testing.assert_close(turned, torch.rot90(square, side, (2, 3)), atol=1e-6, rtol=0)
    assert np.array_equal(torch.rot90(square, 1, (2, 3)).numpy(), np.rot90(square.numpy(), 1, (2, 3)))
    moved = warp(IMAGES, torch.eye(2).repeat(6, 1, 1), torch.tensor([[2.0, -3.0]] * 6))
    assert torch.equal(moved[:, :, 2:, :-3], IMAGES[:, :, :-2, 3:])
    assert not moved[:, :, :2].any() and not moved[:, :, :, -3:].any()
    right = shift(IMAGES, torch.zeros(6), 2 / 11)
    assert torch.equal(right[..., 2:], IMAGES[..., :-2]) and not right[..., :2].any()


class Brightest(nn.Module):
    """Says which quarter of an image is the brightest."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 2).flatten(1) + 0 * self.unused


def quarters(n: int = 40) -> ImageSet:
    labels = torch.arange(n) % 4
    images = torch.randint(0, 100, (n, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        images[i, :, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 60
    return ImageSet(images, labels, ("a", "b", "c", "d"), "quarters")


def test_accuracies_are_those_of_the_changed_images() -> None:
    model, data = Brightest(), quarters()
    found = evaluate_shifts(model, data, seed=2)
    assert found.n == 40 and list(found.accuracy) == list(CHANGES)
    for name in ("rotation", "noise", "occlusion"):
        for strength, accuracy in zip(CHANGES[name].strengths, found.accuracy[name], strict=True):
            answers = model(CHANGES[name](data.images, strength, seed=2)).argmax(1)
            assert accuracy == pytest.approx(100 * (answers == data.labels).double().mean().item())
    assert found.mean == pytest.approx(np.mean([*found.accuracy.values()]))
    assert found.means["shear"] == pytest.approx(np.mean(found.accuracy["shear"]))
    assert evaluate_shifts(model, data, seed=2, batch_size=7) == found, "however they are batched"
    assert model.training, "its mode is as before"
    only = evaluate_shifts(model, data, ["noise"], seed=2)
    assert only.accuracy == {"noise": found.accuracy["noise"]} and only.clean == found.clean


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: evaluate_shifts(Brightest(), quarters(), ["rotations"]), "rotations.*rotation"),
        (lambda: evaluate_shifts(Brightest(), quarters(), batch_size=0), "0"),
        (lambda: CHANGES["occlusion"](IMAGES, 1.5), "1.5"),
        (lambda: CHANGES["noise"](IMAGES, float("nan")), "nan"),
        (lambda: CHANGES["noise"](IMAGES * 2, 0.1), r"\[0, 1\]"),
    ],
)
def test_bad_input_is_refused(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(MspcapsError, match=said):
        ask()


def test_entry_and_figure(tmp_path: Path) -> None:
    evaluation = ShiftEvaluation(90.0, dict.fromkeys(CHANGES, (80.0, 70.0, 60.0, 50.0, 40.5)), 40, 0)
    results = [
        ShiftResult("mspcaps_t", "mnist40", evaluation, "pose", seed, environment={"device": "none"}) for seed in (0, 1)
    ]
    results.append(replace(results[0], model="resnet20", evaluation=replace(evaluation, clean=99.0)))
    for result in results:
        path, figure = write_shifts(tmp_path, result)
        assert read_shifts(path) == result
    assert list_shifts(tmp_path) == results
    assert figure.name == "shifts-mnist40.svg" and path.name == "shifts-resnet20-mnist40-pose-seed0.json"
    lines = [e for e in ElementTree.parse(figure).iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 * len(CHANGES), "two networks, one of them with two seeds, in every panel"
    part = replace(results[0], part=True)
    assert [path.name for path in write_shifts(tmp_path, part)] == [
        "shifts-mspcaps_t-mnist40-pose-seed0-40.json",
        "shifts-mnist40-40.svg",
    ]
    assert ShiftResult.of(Brightest(), "quarters", evaluation).path.name == "shifts-Brightest-quarters.json"
    for seed, change in enumerate(("rotation", "blur")):
        one = replace(evaluation, accuracy={change: evaluation.accuracy[change]})
        _, figure = write_shifts(tmp_path, replace(results[0], dataset="svhn", seed=seed, evaluation=one))
    assert figure.read_text().count("<polyline") == 2, "a panel for each change, though no two networks have both"
    heads, rows = results[0].table()
    assert {len(row) for row in rows} == {len(heads)} and rows[-1][-1] == "60.10" and rows[0][-1] == "90.00"
    whole = json.loads(path.read_text())
    for bad in ({**whole, "what": "attack"}, {**whole, "evaluation": {}}, {**whole, "more": 1}, []):
        path.write_text(json.dumps(bad))
        with pytest.raises(MspcapsError, match=path.name):
            read_shifts(path)
