"""The layers that families share."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mspcaps.models.layers import BatchNorm, Conv3x3, ConvBN, Normalize, in_eval_mode


class PretendsToBeOnAGPU(torch.Tensor):
    """Lets a machine without a GPU walk the GPU's way through Conv3x3."""

    is_cuda = True


@pytest.mark.parametrize("chans", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(8, 8), (5, 7)])
def test_the_patch_product_equals_the_convolution(chans, size):
    conv = Conv3x3(chans, 6).double().train()
    x = torch.randn(2, chans, *size, dtype=torch.float64)
    expected = F.conv2d(x, conv.weight, padding=1)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), conv.weight)
    actual = conv(x.as_subclass(PretendsToBeOnAGPU))
    assert actual.grad_fn.name() != expected.grad_fn.name()  # it really went the other way
    torch.testing.assert_close(actual.as_subclass(torch.Tensor), expected)
    (actual_grad,) = torch.autograd.grad(actual.square().sum(), conv.weight)
    torch.testing.assert_close(actual_grad.as_subclass(torch.Tensor), expected_grad)


def test_batchnorm_is_pytorchs_in_both_modes():
    ours, theirs = BatchNorm(4), nn.BatchNorm2d(4)
    x = torch.randn(3, 4, 5, 5) * 2 + 1
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=0)
    assert "num_batches_tracked" not in ours.state_dict()


def test_a_plain_dictionary_of_weights_loads_strictly():
    # As read from a safetensors file: without the version metadata that state_dict() carries.
    source, target = ConvBN(3, 4), ConvBN(3, 4)
    source(torch.randn(2, 3, 8, 8))
    target.load_state_dict(dict(source.state_dict()), strict=True)
    assert torch.equal(target.bn.running_mean, source.bn.running_mean)
    with pytest.raises(RuntimeError, match="running_var"):
        target.load_state_dict({k: v for k, v in source.state_dict().items() if "running_var" not in k})


def test_weights_with_batch_counters_load_strictly():
    theirs, ours = nn.BatchNorm2d(4), BatchNorm(4)
    theirs(torch.randn(2, 4, 3, 3))
    given = theirs.state_dict()
    nn.Sequential(ours).load_state_dict({f"0.{name}": tensor for name, tensor in given.items()}, strict=True)
    assert torch.equal(ours.running_mean, theirs.running_mean) and "num_batches_tracked" in given


def test_statistics_can_be_reset_and_averaged_anew():
    ours, theirs = BatchNorm(4), nn.BatchNorm2d(4)
    batches = [torch.randn(3, 4, 5, 5) * 2 + 1 for _ in range(3)]
    for norm in (ours, theirs):
        norm(torch.randn(3, 4, 5, 5))
        torch.optim.swa_utils.update_bn(batches, nn.Sequential(norm))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.reset_running_stats()
    assert ours.running_mean.tolist() == [0] * 4 and ours.running_var.tolist() == [1] * 4


@pytest.mark.parametrize("kind", [tuple, list, np.array, torch.tensor])
def test_normalize_takes_numbers_of_any_kind_and_stays_in_single_precision(kind):
    normalize = Normalize(kind([0.5, 0.25]), kind([0.5, 2.0]))
    y = normalize(torch.ones(1, 2, 1, 1))
    assert y.dtype == torch.float32 and y.flatten().tolist() == [1.0, 0.375]


def test_normalize_survives_a_constant_channel():
    assert Normalize([0], [0])(torch.ones(1, 1, 1, 1)).isfinite().all()


def test_afterwards_every_module_is_in_its_own_mode_again():
    model = nn.DataParallel(nn.Sequential(ConvBN(1, 2), ConvBN(2, 2)).train())
    model.module[0].bn.eval()  # frozen
    modes = [module.training for module in model.modules()]
    with pytest.raises(KeyboardInterrupt), in_eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyboardInterrupt
    assert [module.training for module in model.modules()] == modes and len(set(modes)) == 2


def test_images_are_normalised_per_channel_and_flat_ones_not_divided_by_zero():
    x = torch.rand(2, 3, 4, 5)
    y = Normalize([0.1, 0.2, 0.3], [0.5, 0.02, 0.0])(x)
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.02), (0.3, 1e-3))):
        torch.testing.assert_close(y[:, channel], (x[:, channel] - mean) / std)
