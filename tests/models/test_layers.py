"""The layers that families share."""

import numpy as np
import pytest
import torch
from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.models.layers import (
    BatchNorm,
    ConvBN,
    Dropout,
    Normalize,
    check_labels,
    hash_words,
    in_eval_mode,
    run_block,
)


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


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_gets_a_sentence(label):
    with pytest.raises(MspcapsError, match=f"{min(label, 0)} to {max(label, 0)}.* 3 "):
        check_labels(torch.tensor([0, label]), 3)


def test_labels_that_are_no_class_numbers_get_a_sentence():
    with pytest.raises(MspcapsError, match=r"torch.float32 of shape \(2, 3\)"):
        check_labels(torch.rand(2, 3), 3)
    check_labels(torch.tensor([2, 0]), 3)
    check_labels(torch.empty(0, dtype=torch.long), 3)


def masks(p, key, size=400_000):
    layer = Dropout(p)
    layer.key.fill_(key)
    return layer(torch.ones(size)) != 0


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("key", [0, 1, 2**40 + 7, 2**63 - 1, -1])
def test_dropout_keeps_its_share_whatever_the_key(p, key):
    kept = masks(p, key)
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 400_000) ** 0.5 + 1e-9)
    for lag in (1, 2, 3, 32, 1024):  # neighbours know nothing of each other
        together = (kept[lag:] & kept[:-lag]).double().mean().item()
        assert together == pytest.approx((1 - p) ** 2, abs=4e-3)


def test_dropout_scales_what_it_keeps_and_rests_in_evaluation():
    x = torch.randn(64, 3, 5, 7)
    layer = Dropout(0.25)
    layer.key.fill_(123)
    y = layer(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / 0.75)
    assert torch.equal(layer(x), y), "no state but its key"
    assert layer.eval()(x) is x and layer.state_dict() == {}
    assert Dropout(0.5)(x.bfloat16()).dtype == torch.bfloat16
    z = layer.train()(x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(z, y), "the layout in memory does not count"


def test_other_keys_and_other_processes_draw_other_masks():
    first, second = masks(0.5, 5), masks(0.5, 5 + 2**32)
    assert (first == second).double().mean().item() == pytest.approx(0.5, abs=5e-3)
    layer = Dropout(0.5)
    layer.key.fill_(5)
    halves = []
    for layer.share in (0, 1):
        halves.append(layer(torch.ones(200_000)) != 0)
    assert torch.equal(torch.cat(halves), first), "the parts of a batch are the batch"


def test_the_masks_are_those_of_integers_without_overflow():
    """The hash in Python's own integers, which have no end."""

    def mix(x):
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
        x = ((x ^ (x >> 15)) * 0x735A2D97) % 2**32
        return x ^ (x >> 15)

    for key in (0, 1, 77, 2**31, 2**32 + 1, 2**63 - 1):
        numbers = [0, 1, 2, 12345, 2**31, 2**32 - 1]
        expected = [mix(mix((n ^ key) % 2**32) ^ ((key >> 32) % 2**32)) for n in numbers]
        assert hash_words(torch.tensor([key]), torch.tensor(numbers)).tolist() == expected


@pytest.mark.slow
def test_the_compiler_draws_the_same_masks():
    layer, x = Dropout(0.3), torch.randn(4, 33)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for key in (1, 2):
        layer.key.fill_(key)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("p", [-0.1, 1.0, 2])
def test_a_rate_that_makes_no_sense(p):
    with pytest.raises(MspcapsError, match=str(p)):
        Dropout(p)


def test_checkpoints_update_the_statistics_of_every_kind_of_norm_once() -> None:
    """PyTorch's SyncBatchNorm and ours are no BatchNorm2d."""
    block, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.rand(5, 3)
    run_block(block, x, checkpointing=True).sum().backward()
    torch.testing.assert_close(block[1].running_mean, 0.1 * block[0](x).mean(0))
    assert block[1].momentum == 0.1


def test_checkpoints_count_a_batch_once() -> None:
    """A cumulative average divides by the count."""
    averages = []
    for checkpointing in (False, True):
        block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None))
        nn.init.constant_(block[0].weight, 1.0)
        nn.init.zeros_(block[0].bias)
        for i in range(3):
            run_block(block, torch.full((2, 3, 4, 4), float(i)), checkpointing).sum().backward()
        assert block[1].num_batches_tracked == 3 and "1.num_batches_tracked" in block.state_dict()
        averages.append(block[1].running_mean)
    torch.testing.assert_close(averages[1], averages[0], rtol=0, atol=0)


def test_a_single_image_without_a_batch_is_told_from_what_the_model_takes() -> None:
    with pytest.raises(MspcapsError, match=r"\w x 3 x 8 x 9 .* 3 x 8 x 9$"):
        Normalize([0.5] * 3, [0.5] * 3, (8, 9))(torch.rand(3, 8, 9))


def test_bytes_as_floats_are_refused_and_noisy_images_are_not() -> None:
    normalize, x = Normalize((0.5,), (0.25,)), torch.rand(2, 1, 4, 4)
    noisy = x + 3 * torch.randn_like(x)
    torch.testing.assert_close(normalize(noisy), 4 * noisy - 2)
    torch.testing.assert_close(torch.func.vmap(lambda t: normalize(t[None]))(x).squeeze(1), 4 * x - 2)
    with pytest.raises(MspcapsError, match="254"):
        normalize(torch.full_like(x, 254.0))
