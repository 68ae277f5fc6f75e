"""What follows from the images if the recipe does not say."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from test_trainer import CPU, recipe_for

from mspcaps.data import Augmentation, ImageSet
from mspcaps.models.layers import LEAST_STD
from mspcaps.training import images
from mspcaps.training.images import load_images, measure_custom_images, normalization
from mspcaps.training.trainer import build_model


def test_custom_images_are_cropped_by_an_eighth_of_their_shorter_side() -> None:
    data = ImageSet(torch.zeros(4, 1, 40, 24, dtype=torch.uint8), torch.arange(4) % 2, ("a", "b"), "own")
    assert recipe_for(Path("own"), augment=None).resolve(data.size).augment == Augmentation(crop=3)


@pytest.mark.parametrize("held_out", [0, 20])
def test_custom_images_are_counted_as_trained_on(held_out: int, tiny_npz: Path) -> None:
    recipe = recipe_for(tiny_npz, held_out=held_out)
    train, *_ = load_images(recipe, CPU)
    assert measure_custom_images(recipe) == (len(train), train.size) and len(train) == 96 - held_out


def test_building_a_model_leaves_the_global_random_state_alone(tiny_npz: Path) -> None:
    recipe = recipe_for(tiny_npz, model="mspcaps_t_scale16")
    train, *_ = load_images(recipe, CPU)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        build_model(recipe, train)
        assert torch.equal(torch.rand(3), expected)


def test_mean_and_deviation_cover_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Custom images come class by class: here the first half is black and the second white."""
    monkeypatch.setattr(images, "MAX_MEASURED", 10)
    pixels = torch.zeros(100, 1, 4, 4, dtype=torch.uint8)
    pixels[50:] = 255
    recipe = recipe_for(Path("own"))
    mean, std = normalization(recipe, ImageSet(pixels, torch.arange(100) // 50, ("black", "white"), "own"))
    assert (*mean, *std) == pytest.approx((0.5, 0.5), abs=1e-3)


@pytest.mark.parametrize(("modes", "channels"), [(("RGB", "L"), 3), (("L", "RGB"), 1)])
def test_test_pictures_come_in_the_colours_of_the_training_pictures(
    modes: tuple[str, str], channels: int, tmp_path: Path
) -> None:
    for split, mode in zip(("train", "test"), modes, strict=True):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.effect_noise((16, 16), 50).convert(mode).save(tmp_path / split / name / "0.png")
    train, _, test = load_images(recipe_for(tmp_path), CPU)
    assert train[0][0].shape == test[0][0].shape == (channels, 16, 16)


def test_identical_images_can_be_trained_on() -> None:
    """Their deviation of zero is not divided by."""
    black = ImageSet(torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 2, ("a", "b"), "own")
    recipe = recipe_for(Path("own"), model="mspcaps_t_scale16")
    _, std = normalization(recipe, black)
    assert std == (LEAST_STD,) and build_model(recipe, black).config["std"] == pytest.approx(std)
