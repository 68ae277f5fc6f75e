"""DA-CapsNet: every layer against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import margin_loss
from mspcaps.errors import MspcapsError


@pytest.mark.parametrize("extra_conv", [False, True])
def test_equals_loops_over_rows(extra_conv: bool) -> None:
    torch.manual_seed(0)
    task = {"num_classes": 3, "in_chans": 1, "img_size": (21, 22) if extra_conv else (16, 18)}
    model = create_model("da_capsnet", **task, decoder=True, extra_conv=extra_conv).double().eval()
    x, y = torch.rand(2, 1, *task["img_size"], dtype=torch.float64), torch.tensor([2, 0])
    f = (x - 0.5) / 0.5
    for i in (0, 2):
        f = F.conv2d(f, model.fine[i].weight, model.fine[i].bias).clamp(min=0)
    h, w = f.shape[2] // 2, f.shape[3] // 2
    f = sum(f[:, :, r : 2 * h : 2, c : 2 * w : 2] for r in (0, 1) for c in (0, 1)) / 4
    for i in (1, 3, 5)[: 2 + extra_conv]:
        f = F.conv2d(f, model.coarse[i].weight, model.coarse[i].bias).clamp(min=0)
    first, second = model.attention.gate.first, model.attention.gate.second
    hidden = (f.mean((2, 3)) @ first.weight.T + first.bias).clamp(min=0)
    a = (hidden @ second.weight.T + second.bias).tanh()
    f = f + f * a[:, :, None, None]
    rows = [
        f[:, start : start + 128, r, c]
        for r in range(f.shape[2])
        for c in range(f.shape[3])
        for start in range(0, f.shape[1], 128)
    ]
    assert len(rows) == (12 if extra_conv else 6)
    votes = torch.stack([torch.einsum("bd,dje->bje", row, model.routing.w[0]) for row in rows])  # [i, b, j, e]
    gate = model.routing.gate
    hidden = (votes.transpose(0, 1).flatten(1) @ gate.first.weight.T + gate.first.bias).clamp(min=0)
    a = (hidden @ gate.second.weight.T + gate.second.bias).tanh()  # [b, i]
    votes = votes * (1 + a.T[:, :, None, None])
    logits = torch.zeros(len(rows), 2, 3, dtype=torch.float64)
    for _ in range(3):
        couplings = logits.softmax(-1)
        s = (couplings[..., None] * votes).sum(0)
        norm = s.norm(dim=-1, keepdim=True)
        v = norm / (0.5 + norm**2) * s
        logits = logits + (votes * v).sum(-1)
    torch.testing.assert_close(model.forward_capsules(x), v)
    drawn = [model.decoder(torch.cat([v[b, j] * (j == y[b]) for j in range(3)])).view(x[0].shape) for b in range(2)]
    error = sum(((image - x[b]) ** 2).sum() for b, image in enumerate(drawn)) / 2
    expected = margin_loss(v.norm(dim=-1), y) + 0.0005 * error
    assert_same_gradients(model, x, y, expected)
    (state,) = model.routing_state(x)
    assert (state.name, state.axis) == ("routing", 2)
    torch.testing.assert_close(state.couplings, couplings)


def test_channel_attention_with_a_zero_second_layer_is_the_identity() -> None:
    attention, fmap = create_model("da_capsnet", img_size=14).attention, torch.randn(2, 128, 3, 3)
    assert not torch.equal(attention(fmap), fmap)
    torch.nn.init.zeros_(attention.gate.second.weight)
    assert torch.equal(attention(fmap), fmap)


@pytest.mark.parametrize(("options", "least"), [({}, 14), ({"extra_conv": True}, 18), ({"kernel": 2}, 10)])
def test_an_image_without_a_capsule_is_refused(options: dict, least: int) -> None:
    with pytest.raises(MspcapsError, match=rf"{least - 1} x 30.*{least} x 30"):
        create_model("da_capsnet", img_size=(least - 1, 30), **options)
    assert create_model("da_capsnet", img_size=least, **options).eval()(torch.rand(2, 3, least, least)).shape == (2, 10)


def test_its_own_recipe_has_the_decoder() -> None:
    recipe = load_recipe("native/cifar10/da_capsnet")
    assert (recipe.options, recipe.optimizer, recipe.epochs) == ({"decoder": True}, "adam", 100)
