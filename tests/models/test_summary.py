"""Costs against arithmetic done by hand, and the meta device against the real one."""

import copy

import pytest
import torch
from torch import nn

from mspcaps import create_model, list_models
from mspcaps.errors import MspcapsError
from mspcaps.models.summary import Summary, saved_bytes, summarize

T_CONVOLUTIONS = (
    1024 * 9 * (3 * 32 + 32 * 32)  # 32 x 32 maps
    + 256 * 9 * (32 * 64 + 64 * 64)  # 16 x 16
    + 64 * 9 * (64 * 128 + 128 * 128)  # 8 x 8
)
T_PROJECTIONS = 64 * 32 * 8 + 16 * 64 * 8 + 4 * 128 * 16
T_VOTES = (64 + 16) * 8 * (16 * 16) + (16 + 4) * 16 * (10 * 32)


def test_multiply_adds_of_t_by_hand():
    assert summarize("mspcaps_t").macs == T_CONVOLUTIONS + T_PROJECTIONS + T_VOTES
    assert round(T_CONVOLUTIONS / 1e6, 1) == 38.6


def test_multiply_adds_of_l():
    assert round(summarize("mspcaps_l").macs / 1e9, 2) == 1.06


def test_multiply_adds_of_resnet20_by_hand():
    stem, head = 1024 * 9 * 3 * 16, 64 * 10
    stages = 6 * 1024 * 9 * 16 * 16 + 256 * 9 * (16 * 32 + 5 * 32 * 32) + 64 * 9 * (32 * 64 + 5 * 64 * 64)
    assert summarize("resnet20").macs == stem + stages + head


def test_memory_of_resnet20_by_hand():
    # Per convolution: its input (the ReLU before it, kept once) and BatchNorm's input. Then the input of the head.
    maps = 3 * 1024 + (2 + 12) * 16 * 1024 + 12 * 32 * 256 + 12 * 64 * 64
    assert summarize("resnet20").memory_bytes_per_image == 4 * (maps + 64)


def test_saved_bytes_of_two_layers_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    pixels = 3 * 5 * 6 + 8 * 5 * 6  # the image, and the output of the ReLU: kept by it and by the next layer, once
    assert saved_bytes(model, (1, 3, 5, 6)) == 4 * pixels
    assert saved_bytes(model.to("meta"), (7, 3, 5, 6)) == 4 * 7 * pixels


@pytest.mark.parametrize("name", ["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_dr", "resnet20"])
def test_the_meta_device_saves_what_the_cpu_saves(name):
    model = create_model(name, num_classes=4, img_size=20)
    on_cpu = saved_bytes(model, (4, 3, 20, 20)) - saved_bytes(model, (2, 3, 20, 20))
    assert 2 * summarize(name, num_classes=4, img_size=20).memory_bytes_per_image == on_cpu


def test_weights_are_counted_as_stored():
    model = create_model("mspcaps_t")
    stored = sum(
        t.numel() * (2 if key in dict(model.named_parameters()) else 4) for key, t in model.state_dict().items()
    )
    assert summarize("mspcaps_t").weights_bytes == stored
    assert round(stored / 1e6, 1) == 0.7 and round(summarize("mspcaps_l").weights_bytes / 1e6) == 22


def test_a_model_is_summarised_at_its_own_sizes_and_left_as_it_was():
    model = create_model("mspcaps_t", num_classes=5, in_chans=1, img_size=(28, 20)).half().eval()
    before = copy.deepcopy(model.state_dict())
    assert summarize(model) == summarize("mspcaps_t", num_classes=5, in_chans=1, img_size=(28, 20))
    assert not model.training and all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_one_capsule_on_the_last_map_is_enough():
    assert summarize("mspcaps_t", img_size=13).memory_bytes_per_image > 0
    assert summarize("resnet20", img_size=4).memory_bytes_per_image > 0


@pytest.mark.slow
def test_every_model_can_be_summarised():
    rows = {name: summarize(name) for name in list_models()}
    assert all(isinstance(row, Summary) and min(vars(row).values()) > 0 for row in rows.values())
    assert rows["mspcaps_t"].params == 344_320


def test_what_cannot_be_summarised_is_refused():
    with pytest.raises(MspcapsError, match="Linear"):
        summarize(nn.Linear(2, 2))
    with pytest.raises(MspcapsError, match="mspcaps_x"):
        summarize("mspcaps_x")


def test_options_count():
    assert summarize("mspcaps_t", patch=3) == summarize("mspcaps_t_p3") == summarize(create_model("mspcaps_t", patch=3))
    assert summarize("mspcaps_t", shared=False).params == 557_312
    assert summarize("mspcaps_t_dr", iterations=1).params == summarize("mspcaps_t_dr").params
    with pytest.raises(MspcapsError, match="iterations"):
        summarize("mspcaps_t", iterations=1)
