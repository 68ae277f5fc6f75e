"""The convolutional yardsticks: exact counts, and outputs and gradients of each against plain layers."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_layers import batch_norm, move_statistics
from torch.nn import functional as F

from mspcaps import create_model


@pytest.mark.parametrize(("name", "params"), [("resnet20", 269_722), ("resnet18", 11_173_962)])
def test_parameters_are_exactly_those_of_the_literature(name, params):
    with torch.device("meta"):
        model = create_model(name)
        assert sum(p.numel() for p in model.parameters()) == params
        wide = create_model(name, in_chans=1, num_classes=100)
    stem, head = (16, 64) if name == "resnet20" else (64, 512)
    assert sum(p.numel() for p in wide.parameters()) == params - 2 * 9 * stem + 90 * (head + 1)


def conv_bn(x, layer, stride=1):
    kernel = layer.conv.weight
    return batch_norm(F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2), layer.bn)


def reference(model, x, widths, blocks_per_stage):
    """ResNet from its parameters; a shortcut is a projection where it has a convolution."""
    x = conv_bn((x - model.normalize.mean) / model.normalize.std, model.stem).relu()
    blocks = iter(model.blocks)
    for stage, width in enumerate(widths):
        for number in range(blocks_per_stage):
            block, stride = next(blocks), 2 if stage > 0 and number == 0 else 1
            y = conv_bn(conv_bn(x, block.first, stride).relu(), block.second)
            if hasattr(block.shortcut, "conv"):
                shortcut = conv_bn(x, block.shortcut, stride)
            else:  # every second pixel; channels that did not exist before are zero
                shortcut = torch.zeros_like(y)
                for row in range(y.shape[2]):
                    for column in range(y.shape[3]):
                        shortcut[:, : x.shape[1], row, column] = x[:, :, row * stride, column * stride]
            x = (y + shortcut).relu()
            assert x.shape[1] == width
    assert next(blocks, None) is None
    return x.mean((2, 3)) @ model.head.weight.T + model.head.bias


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "widths", "blocks", "size"),
    [("resnet20", (16, 32, 64), 3, (13, 10)), ("resnet18", (64, 128, 256, 512), 2, (9, 16))],
)
@pytest.mark.parametrize("training", [False, True])
def test_equals_plain_layers(name, widths, blocks, size, training):
    torch.manual_seed(0)
    model = create_model(name, img_size=size, num_classes=5, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)).double()
    move_statistics(model.train(training))
    x, y = torch.rand(2, 3, *size, dtype=torch.float64), torch.tensor([4, 0])
    logits = reference(model, x, widths, blocks)
    torch.testing.assert_close(model(x), logits)
    assert_same_gradients(model, x, y, F.cross_entropy(logits, y))


@settings(deadline=None, max_examples=15)
@given(
    batch=st.integers(1, 3),
    height=st.integers(4, 40),
    width=st.integers(4, 40),
    in_chans=st.integers(1, 5),
    num_classes=st.integers(2, 12),
)
def test_any_task_works(batch, height, width, in_chans, num_classes):
    model = create_model("resnet20", num_classes=num_classes, in_chans=in_chans, img_size=(height, width)).eval()
    x = torch.rand(batch, in_chans, height, width)
    assert model(x).shape == (batch, num_classes)
    assert model.forward_features(x).shape == (batch, 64, -(-height // 4), -(-width // 4))


def test_there_are_no_capsules_in_it():
    assert not hasattr(create_model("resnet20"), "forward_capsules")


def test_a_batch_keeps_its_variance_through_the_untrained_network():
    # He's initialisation: neither vanishing nor exploding.
    torch.manual_seed(0)
    logits = create_model("resnet20", num_classes=100)(torch.rand(8, 3, 32, 32))
    assert 0.1 < logits.std() < 10


def test_convolutions_start_from_hes_normal_over_the_fan_out():
    torch.manual_seed(0)
    model = create_model("resnet18")
    for conv in (model.blocks[2].first.conv, model.blocks[2].shortcut.conv):  # from 64 to 128 channels
        fan_out = 128 * conv.weight[0, 0].numel()
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.03)
