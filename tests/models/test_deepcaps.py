"""DeepCaps: the whole forward pass and all gradients against plain layers."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from plain_layers import batch_norm, move_statistics
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import length, margin_loss


def squashed(s: Tensor, axes: int | tuple[int, ...]) -> Tensor:
    norm = torch.linalg.vector_norm(s, dim=axes, keepdim=True)
    return norm**2 / (1 + norm**2) * s / norm


def conv_caps(layer: nn.Module, x: Tensor, d: int, stride: int = 1) -> Tensor:
    s = F.conv2d(x, layer.conv.weight, stride=stride, padding=1)
    types = [squashed(s[:, d * t : d * t + d], 1) for t in range(32)]
    return torch.cat(types, 1)


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """-> class capsules, layer after layer as the paper's figure draws them."""
    x = F.conv2d((x - 0.5) / 0.5, model.stem[0].weight, model.stem[0].bias, padding=1).clamp(min=0)
    x = batch_norm(x, model.stem[2])
    for cell, d in zip(model.cells, (4, 8, 8), strict=True):
        a = conv_caps(cell.down, x, d, 2)
        x = conv_caps(cell.main[1], conv_caps(cell.main[0], a, d), d) + conv_caps(cell.skip, a, d)
    first = x
    a = conv_caps(model.last.down, x, 8, 2)
    b, _, h, w = a.shape
    V = torch.stack([F.conv2d(a[:, 8 * i : 8 * i + 8], model.last.routing.w, padding=1) for i in range(32)], 1)
    V = V.view(b, 32, 32, 8, h, w)
    logits = torch.zeros(b, 32, 32, h, w, dtype=x.dtype)
    for _ in range(3):
        C = logits.exp() / logits.exp().sum((2, 3, 4), keepdim=True)
        v = squashed(torch.einsum("bijhw,bijehw->bjehw", C, V) + model.last.routing.bias, (2, 3, 4))
        logits = logits + torch.einsum("bijehw,bjehw->bijhw", V, v)
    second = conv_caps(model.last.main[1], conv_caps(model.last.main[0], a, 8), 8) + v.reshape(b, 256, h, w)
    capsules = [
        m[:, 8 * t : 8 * t + 8, y, z]
        for m in (second, first) for y in range(m.shape[2]) for z in range(m.shape[3]) for t in range(32)
    ]  # fmt: skip
    U = torch.stack([torch.einsum("bd,dje->bje", u, model.routing.w[i]) for i, u in enumerate(capsules)])
    logits = torch.zeros(U.shape[:3], dtype=x.dtype)
    for _ in range(3):
        v = squashed((logits.softmax(-1)[..., None] * U).sum(0) + model.routing.bias, -1)
        logits = logits + (U * v).sum(-1)
    return v


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_equals_plain_layers(training: bool) -> None:
    torch.manual_seed(0)
    model = create_model("deepcaps", num_classes=3, in_chans=2, img_size=(18, 13), decoder=True).double()
    model.train(training)
    nn.init.normal_(model.routing.w)  # as it starts, every image is answered by the bias
    move_statistics(model)
    x, y = torch.rand(2, 2, 18, 13, dtype=torch.float64), torch.tensor([2, 0])
    v = forward(model, x)
    assert (v[0] - v[1]).abs().max() > 1e-3, "images matter"
    torch.testing.assert_close(model.forward_capsules(x), v)
    drawn = model.decoder(torch.stack([v[0, 2], v[1, 0]]))
    assert drawn.shape == x.shape and torch.equal(model.reconstruct(v, y), drawn)
    expected = margin_loss(length(v), y) + 0.4 * ((drawn - x) ** 2).mean()
    for target in (y, F.one_hot(y, 3).double()):
        assert_same_gradients(model, x, target, expected)


def test_both_routings_say_what_they_did() -> None:
    torch.manual_seed(0)
    model, x = create_model("deepcaps", num_classes=3, in_chans=1, img_size=16).eval(), torch.rand(2, 1, 16, 16)
    states = model.routing_state(x)
    assert [(state.name, *state.couplings.shape) for state in states] == [
        ("last.routing", 32, 2, 32), ("routing", 32 * 5, 2, 3)
    ]  # fmt: skip
    for state in states:
        torch.testing.assert_close(state.couplings.sum(state.axis), torch.ones(state.couplings.shape[:2]))
    assert torch.equal(states[-1].output, model.forward_capsules(x))


@pytest.mark.parametrize("size", [(1, 1), (70, 33)])
def test_any_size_leaves_a_capsule_and_a_picture(size: tuple[int, int]) -> None:
    with torch.device("meta"):
        model = create_model("deepcaps", img_size=size, decoder=True)
        v = model.forward_capsules(torch.empty(2, 3, *size))
        assert model.reconstruct(v, torch.zeros(2, 10)).shape == (2, 3, *size)


def test_its_own_recipe_enlarges_the_images() -> None:
    recipe = load_recipe("native/cifar10/deepcaps")
    assert (recipe.options, recipe.optimizer, recipe.img_size) == ({"decoder": True}, "adam", 64)
