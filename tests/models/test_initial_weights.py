"""Initial weights of the baselines against those that their papers or their authors' code state."""

import math

import pytest
import torch

from mspcaps import create_model


def glorot(inputs: int, outputs: int) -> tuple[str, float]:
    """Keras' uniform distribution; the inputs and outputs of a convolution count every pixel of its kernel."""
    return "uniform", math.sqrt(6 / (inputs + outputs))


EXPECTED = {
    "capsnet": {"routing.w": ("normal", 0.1)},
    "capsnet_cifar": {"routing.w": ("normal", 0.1), "routing.bias": ("constant", 0.1)},
    "aa_capsnet": {"attention.gamma": ("constant", 0.0)},
    "ar_capsnet": {
        "stem.0.weight": glorot(9 * 3, 9 * 64),
        "primary.0.weight": glorot(9 * 64, 9 * 128),
        "affine.weight": glorot(16, 8 * 16),
        "layers.0.routing.transform.weight": glorot(9 * 16, 9 * 8 * 8 * 32),
        "layers.3.routing.attention": glorot(32 * 8, 32 * 8 * 8),
        "layers.3.routing.affine.weight": glorot(32, 8 * 32),
        "routing.w": glorot(64 * 32, 64 * 8 * 10 * 32),  # a convolution whose kernel is the whole 8 x 8 map
        "routing.attention": glorot(32 * 8, 32 * 8 * 10),
        "routing.affine.weight": glorot(32, 10 * 32),
        **dict.fromkeys(("stem.3.bias", "affine.bias", "layers.1.routing.transform.bias"), ("constant", 0.0)),
        **dict.fromkeys(("layers.2.routing.affine.bias", "routing.bias", "routing.affine.bias"), ("constant", 0.0)),
    },
    "da_capsnet": {
        "fine.0.weight": glorot(9 * 3, 9 * 64),
        "coarse.3.weight": glorot(9 * 128, 9 * 128),
        "attention.gate.first.weight": glorot(128, 128),
        "routing.w": glorot(128, 160),
        "routing.gate.first.weight": glorot(16_000, 100),
        **dict.fromkeys(("fine.2.bias", "coarse.1.bias", "routing.gate.second.bias"), ("constant", 0.0)),
    },
    "rs_capsnet": {
        "stem.0.conv.weight": ("normal", math.sqrt(2 / 27)),  # He's, as for every convolution
        "blocks.2.groups.0.conv.weight": ("normal", math.sqrt(2 / 576)),
        "primary.weight": ("normal", math.sqrt(2 / 2304)),
        "combination": ("normal", math.sqrt(1 / 32)),
        "routing.w": ("normal", 0.05),
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_weights(name: str) -> None:
    torch.manual_seed(0)
    params = dict(create_model(name).named_parameters())
    for key, (distribution, value) in EXPECTED[name].items():
        weights = params[key].detach()
        if distribution == "constant":
            assert torch.equal(weights, torch.full_like(weights, value)), key
            continue
        deviation = value if distribution == "normal" else value / math.sqrt(3)
        tolerance = 3 / math.sqrt(weights.numel())  # of the standard deviation of a sample, generously
        assert weights.square().mean().sqrt().item() == pytest.approx(deviation, rel=tolerance), key
        assert (weights.abs().max() <= value) == (distribution == "uniform"), key
