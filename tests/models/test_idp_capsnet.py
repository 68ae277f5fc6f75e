"""IDP-CapsNet: all passes of the routing, and gradients, against layers that are all updated every time."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from torch import Tensor, nn
from torch.nn import functional as F

from mspcaps import create_model, load_recipe


def step(block: nn.Module, u: Tensor, v: Tensor | None, stride: int, k: tuple[int, int]) -> Tensor:
    """Capsules [b, rows, columns, 32, 4, 4] -> [b, h, w, J, 4, 4], all votes at once."""
    windows = u.unfold(1, k[0], stride).unfold(2, k[1], stride)  # [b, h, w, i, p, q, y, x]
    W = block.w.view(*k, u.shape[3], 4, -1, 4)  # [y, x, i, q, j, r]
    V = torch.einsum("bhwipqyx,yxiqjr->bhwyxijpr", windows, W)
    if v is None:
        v = torch.zeros_like(V[:, :, :, 0, 0, 0])
    a = torch.einsum("bhwyxijpr,bhwjpr->bhwyxij", V, v) / 4
    s = torch.einsum("bhwyxij,bhwyxijpr->bhwjpr", a.softmax(-1), V)
    return F.layer_norm(s.flatten(-2), (16,), block.norm.weight, block.norm.bias).unflatten(-1, (4, 4))


def forward(model: nn.Module, x: Tensor, passes: int) -> tuple[Tensor, Tensor]:
    """-> class capsules and logits; every layer is updated in every pass."""
    f = F.conv2d((x - 0.5) / 0.5, model.stem[0].weight, model.stem[0].bias, stride=2, padding=1).clamp(min=0)
    g = F.conv2d(f, model.primary.conv.weight)  # [b, 32 x 16, h, w]
    types = [g[:, 16 * t : 16 * t + 16].permute(0, 2, 3, 1) for t in range(32)]
    types = [F.layer_norm(t, (16,), model.primary.norm.weight, model.primary.norm.bias) for t in types]
    u = torch.stack(types, 3).unflatten(-1, (4, 4))
    layers = [(model.lower, 2, (3, 3)), (model.upper, 1, (3, 3)), (model.routing, 1, model.routing.kernel)]
    poses = [u]
    for block, stride, kernel in layers:
        poses.append(step(block, poses[-1], None, stride, kernel))
    for _ in range(passes - 1):
        updated = [
            step(block, poses[n], poses[n + 1], stride, kernel) for n, (block, stride, kernel) in enumerate(layers)
        ]
        poses = [u, *updated]
    v = poses[-1].flatten(-2).flatten(1, 3)
    return v, (v @ model.head.weight[0]) + model.head.bias


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2, 3, 4, 5])
def test_equals_layers_that_are_all_updated(passes: int) -> None:
    torch.manual_seed(passes)
    model = create_model("idp_capsnet", num_classes=3, in_chans=2, img_size=(17, 15), iterations=passes).double()
    for name, p in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(p)
    x = torch.rand(2, 2, 17, 15, dtype=torch.float64)
    v, logits = forward(model, x, passes)
    torch.testing.assert_close(model.forward_capsules(x), v)
    torch.testing.assert_close(model(x), logits)
    states = model.routing_state(x)
    assert [state.name for state in states] == ["lower", "upper", "routing"][max(0, 4 - passes) :]
    if states:
        torch.testing.assert_close(states[-1].output, v)
        assert states[-1].couplings.shape == (32 * 2, 2, 3)
    y = torch.tensor([2, 0])
    expected = F.cross_entropy(logits, y)
    assert_same_gradients(model, x, y, expected)
    expected.backward()
    still = {name for name, p in model.named_parameters() if p.grad.abs().max() < 1e-12}
    alike = {"head.bias"} if passes > 1 else {"head.bias", "routing.norm.bias"}
    assert still == alike, "what moves all logits alike, cross-entropy does not see"


def test_its_own_recipe_has_four_passes() -> None:
    recipe = load_recipe("native/cifar10/idp_capsnet")
    assert (recipe.options, recipe.optimizer, recipe.lr_steps) == ({"iterations": 4}, "sgd", (150, 250))
