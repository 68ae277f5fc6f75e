"""PatchifyCaps against a loop that slices every patch by hand, and against the paper's 1x1 convolution."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from mspcaps.capsules import PatchifyCaps


def random_patchify(chans, dim, grid, patch, seed=0):
    """Every parameter random, so that none of them can go missing unseen."""
    torch.manual_seed(seed)
    module = PatchifyCaps(chans, dim, grid, patch).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def loop(module, f):
    """Patch by patch: mean, projection, position, LayerNorm written out."""
    batch, chans, height, width = f.shape
    p, capsules = module.patch, []
    weight, bias = module.project.weight, module.project.bias
    for b in range(batch):
        row = []
        for top in range(0, height - p + 1, p):
            for left in range(0, width - p + 1, p):
                mean = [f[b, c, top : top + p, left : left + p].sum() / p**2 for c in range(chans)]
                u = torch.stack([sum(w * x for w, x in zip(weight[d], mean, strict=True)) for d in range(len(bias))])
                u = u + bias + module.position[len(row)]
                centred = u - u.sum() / len(u)
                normal = centred / (centred.pow(2).sum() / len(u) + 1e-5).sqrt()
                row.append(normal * module.norm.weight + module.norm.bias)
        capsules.append(torch.stack(row))
    return torch.stack(capsules)


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    chans=st.integers(1, 4),
    dim=st.integers(2, 5),
    patch=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rest=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_equals_the_loop_over_patches(batch, chans, dim, patch, grid, rest):
    module = random_patchify(chans, dim, grid, patch)
    height, width = (grid[i] * patch + min(rest[i], patch - 1) for i in (0, 1))
    f = torch.randn(batch, chans, height, width, dtype=torch.float64)
    u = module(f)
    assert u.shape == (batch, grid[0] * grid[1], dim)
    torch.testing.assert_close(u, loop(module, f), rtol=1e-7, atol=1e-8)


def test_the_remainder_at_the_border_is_dropped():
    module = random_patchify(2, 4, (2, 2), 3)
    f = torch.randn(1, 2, 8, 7, dtype=torch.float64)
    changed = f.clone()
    changed[:, :, 6:], changed[:, :, :, 6:] = 100.0, 100.0
    assert torch.equal(module(f), module(changed))
    changed[0, 0, 5, 5] += 1
    assert not torch.equal(module(f), module(changed))


def test_the_projection_is_a_1x1_convolution():
    module = random_patchify(6, 5, (4, 2), 2)
    f = torch.randn(3, 6, 8, 4, dtype=torch.float64)
    conv = nn.Conv2d(6, 5, 1).double()
    with torch.no_grad():
        conv.weight.copy_(module.project.weight[:, :, None, None])
        conv.bias.copy_(module.project.bias)
    u = conv(nn.functional.avg_pool2d(f, 2)).flatten(2).transpose(1, 2) + module.position
    torch.testing.assert_close(module(f), module.norm(u))


def test_channels_last_and_contiguous_maps_give_the_same_capsules():
    module = random_patchify(4, 3, (2, 3), 2)
    f = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(module(f), module(f.to(memory_format=torch.channels_last)))


def test_positions_start_from_a_standard_normal():
    position = PatchifyCaps(8, 64, (16, 16), 2).position
    assert abs(position.std().item() - 1) < 0.03 and abs(position.mean().item()) < 0.03


def test_without_positions_nothing_is_added_and_nothing_else_changes():
    torch.manual_seed(0)
    module = PatchifyCaps(4, 3, (2, 3), 2, position=False).double()
    assert [name for name, _ in module.named_parameters()] == [
        "project.weight",
        "project.bias",
        "norm.weight",
        "norm.bias",
    ]
    f, other = torch.randn(2, 4, 5, 6, dtype=torch.float64), random_patchify(4, 3, (2, 3), 2)
    nn.init.zeros_(other.position)
    other.load_state_dict(module.state_dict(), strict=False)
    assert torch.equal(module(f), other(f)) and module.tensor_places() == {}


def test_its_layers_are_called_so_that_hooks_and_pruning_work():
    module, seen = random_patchify(2, 3, (2, 2), 2), []
    module.project.register_forward_hook(lambda layer, args, u: seen.append(u.shape))
    f = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    before = module(f)
    assert seen == [(1, 4, 3)]
    torch.testing.assert_close(before, loop(module, f), rtol=1e-7, atol=1e-8)
    prune.ln_structured(module.project, "weight", amount=1, n=2, dim=1)
    assert not torch.equal(module(f), before)
