"""Efficient-CapsNet: every layer and all gradients against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from plain_layers import batch_norm, move_statistics
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import margin_loss


@pytest.mark.parametrize("training", [False, True])
def test_equals_loops_over_capsules(training: bool) -> None:
    torch.manual_seed(0)
    model = create_model("efficient_capsnet", num_classes=3, in_chans=1, img_size=(13, 17), decoder=True)
    move_statistics(model)
    torch.nn.init.normal_(model.routing.prior)
    model.double().train(training)
    x, y = torch.rand(2, 1, 13, 17, dtype=torch.float64), torch.tensor([2, 0])
    f = (x - 0.5) / 0.5
    for i, stride in zip((0, 3, 6, 9), (1, 1, 1, 2), strict=True):
        conv, norm = model.stem[i], model.stem[i + 2]
        f = batch_norm(F.conv2d(f, conv.weight, conv.bias, stride).clamp(min=0), norm)
    assert f.shape == (2, 128, 2, 4)
    g = (f * model.primary.weight[:, 0]).sum((2, 3)) + model.primary.bias  # [b, 128]
    u = [short(g[:, 8 * i : 8 * i + 8]) for i in range(16)]
    w, prior = model.routing.w, model.routing.prior
    votes = [[u[i] @ w[i, :, j] for j in range(3)] for i in range(16)]
    classes = [torch.zeros(2, 16, dtype=torch.float64)] * 3
    for i in range(16):
        rows = [sum((votes[i][j] * votes[other][j]).sum(-1) for other in range(16)) / 4 for j in range(3)]
        couplings = torch.stack(rows).softmax(0)
        classes = [classes[j] + (couplings[j] + prior[i, 0, j])[:, None] * votes[i][j] for j in range(3)]
    v = short(torch.stack(classes, 1))
    torch.testing.assert_close(model.forward_capsules(x), v)
    drawn = [
        model.decoder(torch.cat([v[b, j] * (j == y[b]) for j in range(3)])).view(1, 13, 17) for b in range(2)
    ]  # fmt: skip
    error = sum(((image - x[b]) ** 2).mean() for b, image in enumerate(drawn)) / 2
    expected = margin_loss(v.norm(dim=-1), y) + 0.392 * error
    assert_same_gradients(model, x, y, expected)


def short(s: torch.Tensor) -> torch.Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return (1 - (-norm).exp()) * s / norm


def test_couplings_sum_to_one_over_the_classes() -> None:
    model, x = create_model("efficient_capsnet", num_classes=3, img_size=20).eval(), torch.rand(2, 3, 20, 20)
    (state,) = model.routing_state(x)
    assert (state.name, state.axis, state.couplings.shape) == ("routing", 2, (16, 2, 3))
    torch.testing.assert_close(state.couplings.sum(2), torch.ones(16, 2))
    assert torch.equal(state.output, model.forward_capsules(x))


def test_its_own_recipe_has_the_decoder() -> None:
    recipe = load_recipe("native/mnist/efficient_capsnet")
    assert (recipe.options, recipe.batch_size, recipe.lr_gamma) == ({"decoder": True}, 16, 0.98)
