"""AA-CapsNet: every layer against a plain reference."""

import pytest
import torch
from gradient_checks import assert_same_gradients
from torch.nn import functional as F

from mspcaps import create_model, load_recipe
from mspcaps.capsules import margin_loss
from mspcaps.errors import MspcapsError


def test_equals_loops_over_places() -> None:
    torch.manual_seed(0)
    model = create_model("aa_capsnet", num_classes=3, in_chans=1, img_size=(20, 21)).double().eval()
    attention = model.attention
    torch.nn.init.constant_(attention.gamma, 0.7)
    for conv in (attention.query, attention.key):
        torch.nn.init.normal_(conv.weight)
    x, y = torch.rand(2, 1, 20, 21, dtype=torch.float64), torch.tensor([2, 0])
    f = F.conv2d((x - 0.5) / 0.5, model.stem[0].weight, model.stem[0].bias).clamp(min=0)
    g = F.conv2d(f, model.primary.weight, model.primary.bias, stride=2)  # [b, 256, 2, 3]
    types = [g[:, 8 * t : 8 * t + 8] for t in range(32)]
    u = torch.cat([s * s.norm(dim=1, keepdim=True) / (1 + s.square().sum(1, keepdim=True)) for s in types], 1)
    places = [(r, c) for r in range(2) for c in range(3)]

    def at(conv: torch.nn.Conv2d, place: tuple[int, int]) -> torch.Tensor:
        return u[:, :, place[0], place[1]] @ conv.weight[:, :, 0, 0].T + conv.bias

    z, shares = u.clone(), []
    for m in places:
        agreements = torch.stack([(at(attention.query, m) * at(attention.key, n)).sum(1) for n in places])  # [n, b]
        share = agreements.softmax(0)
        shares.append(share)
        for i, n in enumerate(places):
            z[:, :, m[0], m[1]] += attention.gamma * share[i][:, None] * at(attention.value, n)
    hidden = (z.flatten(1) @ model.hidden.weight.T + model.hidden.bias).clamp(min=0)
    expected = 1 / (1 + (-(hidden @ model.head.weight.T + model.head.bias)).exp())
    torch.testing.assert_close(model(x), expected)
    assert_same_gradients(model, x, y, margin_loss(expected, y))
    torch.testing.assert_close(attention.couplings(u), torch.stack(shares).permute(2, 0, 1))  # [b, m, n]
    assert model.routing_state(x) == [], "nothing is routed to the classes"


def test_attention_is_the_identity_at_first() -> None:
    attention, u = create_model("aa_capsnet", num_classes=3, img_size=20).attention, torch.randn(2, 256, 2, 2)
    assert torch.equal(attention(u), u)


@torch.no_grad()
def test_couplings_are_not_rounded_before_the_softmax() -> None:
    """bf16 would move an agreement of 50 by up to 0.1, and a coupling by a tenth."""
    torch.manual_seed(0)
    attention, u = create_model("aa_capsnet", num_classes=3, img_size=26).attention, torch.randn(2, 256, 5, 5)
    for conv in (attention.query, attention.key):
        torch.nn.init.normal_(conv.weight, std=0.15)
    with torch.autocast("cpu", torch.bfloat16):
        q, k = (conv(u).flatten(2).float() for conv in (attention.query, attention.key))
        found = attention.couplings(u)
    expected = torch.einsum("bdm,bdn->bmn", q, k).softmax(-1)  # [b, m, n]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_every_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    model, y = create_model("aa_capsnet", num_classes=3, img_size=20), torch.tensor([0, 2, 1])
    torch.nn.init.ones_(model.attention.gamma)  # at zero only it learns, and the rest of attention follows
    model.training_loss(torch.rand(3, 3, 20, 20), y, model.criterion).backward()
    zero = {name for name, p in model.named_parameters() if not (p.grad.isfinite().all() and p.grad.any())}
    assert zero <= {"attention.key.bias"}, "the softmax cancels it: what is left is rounding"


def test_the_loss_can_be_cross_entropy() -> None:
    x, y, made = torch.rand(2, 3, 20, 20), torch.tensor([0, 2]), []
    for loss in ("margin", "cross_entropy"):
        torch.manual_seed(0)
        made.append(create_model("aa_capsnet", num_classes=3, img_size=20, loss=loss).eval())
    lengths, logits = made
    assert (lengths.scores, logits.scores) == ("lengths", "logits")
    torch.testing.assert_close(logits(x).sigmoid(), lengths(x))
    torch.testing.assert_close(logits.training_loss(x, y, logits.criterion), F.cross_entropy(logits(x), y))
    with pytest.raises(MspcapsError, match="hinge"):
        create_model("aa_capsnet", loss="hinge")


def test_recipes() -> None:
    paper, own = load_recipe("paper/cifar10/aa_capsnet"), load_recipe("native/cifar10/aa_capsnet")
    assert paper.replace(model="mspcaps_t", name="paper") == load_recipe("paper/cifar10/mspcaps_t")
    assert (own.optimizer, own.lr, own.weight_decay, own.epochs) == ("adamw", 1e-3, 1e-7, 100)
