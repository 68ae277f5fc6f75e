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
    "deepcaps": {
        "stem.0.weight": glorot(9 * 3, 9 * 128),
        "cells.1.down.conv.weight": glorot(math.sqrt(9 * 128 * 256), math.sqrt(9 * 128 * 256)),  # six axes in Keras
        "last.routing.w": ("normal", math.sqrt(2 / 72)),
        "routing.w": glorot(10 * 640 * 8, 10 * 640 * 32),
        "routing.bias": glorot(10, 32),
        "last.routing.bias": ("constant", 0.1),
        "stem.0.bias": ("constant", 0.0),
    },
    "idp_capsnet": {
        "lower.w": ("normal", math.sqrt(32 / (4 * 32 * 9))),
        "upper.w": ("normal", math.sqrt(32 / (4 * 32 * 9))),
        "routing.w": ("normal", math.sqrt(10 / (4 * 800))),
        **dict.fromkeys(("primary.norm.weight", "routing.norm.weight"), ("constant", 1.0)),
    },
    "efficient_capsnet": {
        "stem.0.weight": ("normal", math.sqrt(2 / 75)),
        "stem.9.weight": ("normal", math.sqrt(2 / 576)),
        "primary.weight": glorot(121, 121 * 128),
        "routing.w": ("normal", math.sqrt(2 / (10 * 16 * 8))),
        **dict.fromkeys(("stem.0.bias", "stem.9.bias", "primary.bias", "routing.prior"), ("constant", 0.0)),
    },
    "orthcaps_s": {
        **dict.fromkeys(("layers.1.routing.reflections", "flat.bn.bias"), ("normal", 1.0)),
        "routing.w": ("normal", math.sqrt(2 / 256)),
        "primary.bn.bias": ("constant", 0.0),
    },
    "orthcaps_d": {
        **dict.fromkeys(("layers.1.routing.reflections", "layers.0.layers.0.0.bn.bias"), ("normal", 1.0)),
        "layers.1.routing.norm.weight": ("constant", 0.25),
        "primary.bn.bias": ("constant", 0.0),
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
