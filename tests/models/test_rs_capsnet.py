"""RS-CapsNet: every layer against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from plain_layers import batch_norm
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import margin_loss
from mspcaps.models.layers import BatchNorm


def test_parameters_of_each_stage() -> None:
    with torch.device("meta"):
        model = create_model("rs_capsnet")
    stages = [model.stem, *model.blocks, model.primary, model.routing]
    counts = [sum(p.numel() for p in stage.parameters()) for stage in stages]
    assert counts == [1_856, 16_036, 63_560, 252_048, 590_080, 327_680] and model.combination.numel() == 128


def squashed(s):
    size = s.norm(dim=-1, keepdim=True)
    return s * size / (1 + size**2)


def block_reference(block, x, stride):
    f = batch_norm(F.conv2d(x, block.first.conv.weight), block.first.bn).clamp(min=0)
    w = f.shape[1] // 4
    x1, x2, x3, x4 = (f[:, i * w : (i + 1) * w] for i in range(4))

    def K(i, x):
        unit = block.groups[i - 2]
        return batch_norm(F.conv2d(x, unit.conv.weight, stride=stride, padding=1), unit.bn).clamp(min=0)

    if stride == 1:
        y1, y2 = x1, K(2, x2)
        y3 = K(3, x3 + y2)
        y4 = K(4, x4 + y3)
    else:
        box = torch.full((w, 1, 3, 3), 1 / 9, dtype=x.dtype)
        y1 = F.conv2d(x1, box, stride=2, padding=1, groups=w)
        y2, y3, y4 = K(2, x2), K(3, x3), K(4, x4)
    g = batch_norm(F.conv2d(torch.cat([y1, y2, y3, y4], 1), block.last.conv.weight), block.last.bn)
    a = block.attention
    hidden = (g.mean((2, 3)) @ a.squeeze.weight.T + a.squeeze.bias).clamp(min=0)
    gate = 1 / (1 + (-(hidden @ a.excite.weight.T + a.excite.bias)).exp())
    shortcut = x
    if hasattr(block.shortcut, "conv"):
        shortcut = batch_norm(F.conv2d(x, block.shortcut.conv.weight, stride=stride), block.shortcut.bn)
    return (g * gate[:, :, None, None] + shortcut).clamp(min=0)


@pytest.mark.parametrize("training", [False, True])
def test_equals_loops_over_capsules(training: bool) -> None:
    torch.manual_seed(0)
    model = create_model("rs_capsnet", num_classes=3, in_chans=1, img_size=(7, 9), decoder=True)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    model.double().train(training)
    x, y = torch.rand(2, 1, 7, 9, dtype=torch.float64), torch.tensor([2, 0])
    f = F.conv2d((x - 0.5) / 0.5, model.stem[0].conv.weight, padding=1)
    f = batch_norm(f, model.stem[0].bn).clamp(min=0)
    for block, stride in zip(model.blocks, (1, 2, 2), strict=True):
        f = block_reference(block, f, stride)
    g = F.conv2d(f, model.primary.weight, model.primary.bias, padding=1)  # [b, 32 x 8, 2, 3]
    combined = []
    for m in range(4):
        for row in range(2):
            for column in range(3):
                types = [squashed(g[:, 8 * t : 8 * t + 8, row, column]) for t in range(32)]
                combined.append(squashed(sum(model.combination[m, t] * u for t, u in enumerate(types))))
    torch.testing.assert_close(model.forward_features(x), torch.stack(combined, 1))
    votes = torch.stack([torch.einsum("bd,dje->bje", u, model.routing.w[i]) for i, u in enumerate(combined)])
    logits = torch.zeros(24, 2, 3, dtype=torch.float64)
    for _ in range(3):
        couplings = logits.softmax(-1)
        v = squashed((couplings[..., None] * votes).sum(0))
        logits = logits + (votes * v).sum(-1)
    torch.testing.assert_close(model.forward_capsules(x), v)
    drawn = [model.decoder(torch.cat([v[b, j] * (j == y[b]) for j in range(3)])).view(1, 7, 9) for b in range(2)]
    error = sum(((image - x[b]) ** 2).sum() for b, image in enumerate(drawn)) / 2
    expected = margin_loss(v.norm(dim=-1), y) + 0.0005 * error
    assert_same_gradients(model, x, y, expected)
    (state,) = model.routing_state(x)
    assert (state.name, state.axis) == ("routing", 2)
    torch.testing.assert_close(state.couplings, couplings)


def test_its_own_recipe_has_the_decoder() -> None:
    recipe = load_recipe("native/cifar10/rs_capsnet")
    assert recipe.replace(options={}, model="mspcaps_t", name="paper") == load_recipe("paper/cifar10/mspcaps_t")
    assert recipe.options == {"decoder": True}
