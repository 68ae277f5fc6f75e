"""AR-CapsNet: every layer against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import margin_loss
from mspcaps.models import Task
from mspcaps.models.ar_capsnet import ARCapsNet
from mspcaps.models.layers import BatchNorm


@pytest.mark.parametrize(
    ("layers", "dim", "millions"),
    [(0, 16, 7.3), (0, 32, 12.6), (1, 16, 3.5), (1, 32, 7.7), (2, 16, 3.7), (3, 16, 3.8), (3, 32, 8.9), (4, 16, 4.0)],
)
def test_the_table_of_its_paper(layers: int, dim: int, millions: float) -> None:
    """Depth and dimension on CIFAR-10, with decoder. Of two layers of 32 the paper says 8.4, where we count 8.3."""
    with torch.device("meta"):
        model = ARCapsNet(Task(10, 3, (32, 32), (0.5,) * 3, (0.5,) * 3), layers, dim, decoder=True)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_the_mnist_model_without_convolutional_capsules_to_the_digit() -> None:
    with torch.device("meta"):
        model = ARCapsNet(Task(10, 1, (28, 28), (0.5,), (0.5,)), layers=0, dim=16, decoder=True)
        assert model(torch.empty(2, 1, 28, 28)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == 4_889_456


def route(routing: nn.Module, votes: Tensor) -> Tensor:
    """Votes [i, b, j, e, h, w] -> affine maps of their weighted sums [b, j, e, h, w], a channel at a time."""
    outputs = []
    for j in range(votes.shape[2]):
        logits = torch.einsum("ibehw,kei->kbhw", votes[:, :, j], routing.attention[j])
        s = (logits.softmax(0).unsqueeze(2) * votes[:, :, j]).sum(0)  # [b, e, h, w]
        outputs.append(F.conv2d(s, routing.affine.weight[j].T[..., None, None], routing.affine.bias[j]))
    return torch.stack(outputs, 1)


def cast(u: Tensor, weight: Tensor, bias: Tensor, n_out: int, stride: int, padding: int) -> Tensor:
    """The convolutions of the input channels, one by one: [b, i, d, h, w] -> [i, b, j, e, h', w']."""
    kernels, biases = weight.chunk(8), bias.chunk(8)
    votes = [F.conv2d(u[:, i], kernels[i], biases[i], stride, padding) for i in range(8)]
    return torch.stack(votes).unflatten(2, (n_out, -1))


@pytest.mark.parametrize("training", [False, True])
def test_equals_loops_over_channels(training: bool) -> None:
    torch.manual_seed(0)
    model = create_model("ar_capsnet", num_classes=3, in_chans=1, img_size=(7, 10), layers=3, dim=4, decoder=True)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    for name, parameter in model.named_parameters():
        if name.startswith(("layers", "routing", "affine")):
            nn.init.normal_(parameter, std=0.3)
    model.double().train(training)
    x, y = torch.rand(2, 1, 7, 10, dtype=torch.float64), torch.tensor([2, 0])
    f = (x - 0.5) / 0.5
    for i in (0, 3):
        conv, norm = model.stem[i], model.stem[i + 1]
        f = F.conv2d(f, conv.weight, conv.bias, padding=1)
        statistics = (None, None) if training else (norm.running_mean, norm.running_var)
        f = F.batch_norm(f, *statistics, norm.weight, norm.bias, training, eps=norm.eps).clamp(min=0)
    f = F.conv2d(f, model.primary[0].weight, model.primary[0].bias, stride=2, padding=1).clamp(min=0)
    channels = [f[:, 16 * n : 16 * n + 16] for n in range(8)]
    w, b = model.affine.weight, model.affine.bias
    u = torch.stack([F.conv2d(c, w[n].T[..., None, None], b[n]).tanh() for n, c in enumerate(channels)], 1)
    assert u.shape == (2, 8, 16, 4, 5)
    torch.testing.assert_close(model.forward_features(x), u)
    for i, layer in enumerate(model.layers):
        transform = layer.routing.transform
        dropped = u * layer.dropout(torch.ones_like(u))
        s = route(layer.routing, cast(dropped, transform.weight, transform.bias, 8, stride=1 if i else 2, padding=1))
        u = (s + u if i else s).tanh()
    assert u.shape == (2, 8, 4, 2, 3)
    kernel = model.routing.w.unflatten(1, (4, 2, 3)).permute(0, 4, 5, 1, 2, 3).flatten(0, 2)  # the whole map
    dropped = u * model.dropout(torch.ones_like(u))
    last = route(model.routing, cast(dropped, kernel, model.routing.bias.flatten(), 3, stride=1, padding=0)).tanh()
    v = last[..., 0, 0]  # [b, j, e]
    torch.testing.assert_close(model(x), v.norm(dim=-1) / 2)  # the root of 4
    drawn = [model.decoder(torch.cat([v[b, j] * (j == y[b]) for j in range(3)])).view(1, 7, 10) for b in range(2)]
    error = sum(((image - x[b]) ** 2).mean() for b, image in enumerate(drawn)) / 2
    expected = margin_loss(v.norm(dim=-1) / 2, y) + 0.3 * error
    assert_same_gradients(model, x, y, expected)


def test_couplings_sum_to_one_over_the_channels_at_every_place() -> None:
    model, x = create_model("ar_capsnet", num_classes=3, img_size=20, layers=2).eval(), torch.rand(2, 3, 20, 20)
    states = model.routing_state(x)
    assert [state.name for state in states] == ["layers.0.routing", "layers.1.routing", "routing"]
    assert [state.couplings.shape for state in states] == [(8, 2, 5 * 5 * 8), (8, 2, 5 * 5 * 8), (8, 2, 3)]
    for state in states:
        torch.testing.assert_close(state.couplings.sum(state.axis), torch.ones(state.couplings.shape[1:]))
    torch.testing.assert_close(states[-1].output / 32**0.5, model.forward_capsules(x))


def test_dropout_follows_its_key() -> None:
    model, y = create_model("ar_capsnet", num_classes=3, img_size=12, decoder=True), torch.tensor([0, 2, 1])
    x = torch.rand(3, 3, 12, 12)
    loss = model.training_loss(x, y, model.criterion)
    assert model.training_loss(x, y, model.criterion) == loss
    model.dropout.key.fill_(7)
    assert model.training_loss(x, y, model.criterion) != loss


def test_its_own_recipe_has_the_decoder() -> None:
    recipe = load_recipe("native/cifar10/ar_capsnet")
    assert (recipe.options, recipe.batch_size, recipe.epochs) == ({"decoder": True}, 100, 200)
