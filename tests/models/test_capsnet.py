"""CapsNet: every layer against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import length, margin_loss
from mspcaps.errors import MspcapsError
from mspcaps.models import save_weights


def test_equals_loops_over_capsules() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet", num_classes=3, in_chans=1, img_size=(17, 19), decoder=True).double().eval()
    x, y = torch.rand(2, 1, 17, 19, dtype=torch.float64), torch.tensor([2, 0])
    f = F.conv2d((x - 0.5) / 0.5, model.stem[0].weight, model.stem[0].bias).clamp(min=0)
    g = F.conv2d(f, model.primary.weight, model.primary.bias, stride=2)  # [b, 32 x 8, 1, 2]
    capsules = [g[:, 8 * t : 8 * t + 8, 0, column] for t in range(32) for column in range(2)]  # positions within types
    capsules = [s * (s.norm(dim=1) / (1 + s.norm(dim=1) ** 2))[:, None] for s in capsules]
    votes = torch.stack([torch.einsum("bd,dje->bje", u, model.routing.w[i]) for i, u in enumerate(capsules)])
    logits = torch.zeros(64, 2, 3, dtype=torch.float64)
    for _ in range(3):
        s = (logits.softmax(-1)[..., None] * votes).sum(0)
        v = s * (s.norm(dim=-1) / (1 + s.norm(dim=-1) ** 2))[..., None]
        logits = logits + (votes * v).sum(-1)
    torch.testing.assert_close(model.forward_capsules(x), v)
    drawn = []
    for b in range(2):
        flat = torch.cat([v[b, j] if j == y[b] else torch.zeros(16, dtype=torch.float64) for j in range(3)])
        drawn.append(model.decoder(flat[None]).view(1, 17, 19))
    error = sum(((image - x[b]) ** 2).sum() for b, image in enumerate(drawn)) / 2
    expected = margin_loss(length(v), y) + 0.0005 * error
    assert_same_gradients(model, x, y, expected)
    assert_same_gradients(model, x, F.one_hot(y, 3).double(), expected)


@pytest.mark.slow
def test_a_member_of_the_ensemble_equals_its_layers_one_by_one() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet_cifar", num_classes=3, in_chans=2, img_size=(28, 7)).double().eval()
    x, y = torch.rand(2, 2, 28, 7, dtype=torch.float64), torch.tensor([2, 0])
    window = x[:, :, 2:26]
    seen = torch.stack([(image - image.mean()) / image.std(correction=0) for image in window])
    f = F.conv2d(F.pad(seen, (4, 4, 4, 4)), model.stem[0].weight, model.stem[0].bias).clamp(min=0)
    g = F.conv2d(F.pad(f, (4, 4, 4, 4)), model.primary.weight, model.primary.bias, stride=2)
    assert g.shape == (2, 64 * 8, 12, 4)
    capsules = torch.stack([g[:, 8 * t : 8 * t + 8].flatten(2) for t in range(64)], 1).mT.flatten(1, 2)  # [b, n, d]
    norm = capsules.norm(dim=-1, keepdim=True)
    votes = torch.einsum("bid,idje->bije", capsules * norm / (1 + norm**2), model.routing.w)
    logits = torch.zeros(2, 64 * 12 * 4, 3, dtype=torch.float64)
    for _ in range(3):
        couplings = logits.exp() / (1 + logits.exp().sum(-1, keepdim=True))  # the 1 is the vote for no class
        s = (couplings[..., None] * votes).sum(1) + model.routing.bias
        v = s * (s.norm(dim=-1) / (1 + s.norm(dim=-1) ** 2))[..., None]
        logits = logits + (votes * v[:, None]).sum(-1)
    torch.testing.assert_close(model.forward_capsules(x), v)
    assert_same_gradients(model, x, y, margin_loss(length(v), y))


@torch.no_grad()
def test_a_member_of_the_ensemble_sees_neither_the_margin_nor_brightness_nor_contrast() -> None:
    torch.manual_seed(0)
    model, x = create_model("capsnet_cifar", num_classes=2, in_chans=1, img_size=26).eval(), torch.rand(1, 1, 26, 26)
    margin = x.clone()
    margin[..., 0, :] = margin[..., :, -1] = 0
    assert torch.equal(model(margin), model(x))
    torch.testing.assert_close(model(0.3 * x + 0.2), model(x), rtol=1e-4, atol=1e-5)
    assert model(torch.full_like(x, 0.7)).isfinite().all()


@pytest.mark.slow
def test_a_member_of_the_ensemble_moves_to_a_larger_image_whole(tmp_path) -> None:
    model = create_model("capsnet_cifar", num_classes=2, in_chans=1, img_size=24)
    save_weights(path := tmp_path / "w.safetensors", model)
    larger, smaller = (create_model("capsnet_cifar", pretrained=path, img_size=size) for size in ((24, 30), (24, 20)))
    state = model.state_dict()
    assert all(torch.equal(t, state[key]) for key, t in larger.state_dict().items())
    assert smaller.routing.w.shape[0] == 64 * 12 * 10


def test_without_a_decoder_nothing_is_drawn_and_nothing_is_added() -> None:
    model = create_model("capsnet", in_chans=1, img_size=17, num_classes=2).eval()
    x, y = torch.rand(2, 1, 17, 17), torch.tensor([0, 1])
    assert model.training_loss(x, y, model.criterion) == margin_loss(model(x), y)
    with pytest.raises(MspcapsError, match="decoder"):
        model.reconstruct(model.forward_capsules(x), y)


def test_its_own_recipe_has_the_decoder() -> None:
    assert load_recipe("native/cifar10/capsnet_cifar").options == {}, "that of the ensemble has none"
    recipe = load_recipe("native/mnist/capsnet")
    assert (recipe.options, recipe.optimizer, recipe.schedule) == ({"decoder": True}, "adam", "exponential")
