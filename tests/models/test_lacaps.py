"""LaCaps: the network against a reference of its own, one set of weights for every size, plain heads."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import mspcaps
from mspcaps import create_model
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, save_weights, summarize
from mspcaps.models.lacaps import LaCaps
from mspcaps.models.layers import BatchNorm

MOST = {"lacaps_t": 344_320, "lacaps_l": 10_932_944}


def trained_like(name: str = "lacaps_t", **task: object) -> Model:
    """BatchNorm statistics, offsets and gains are no longer the initial ones."""
    torch.manual_seed(0)
    model = create_model(name, **task)  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, BatchNorm):
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.normal_(module.bias, std=0.2)
    for key, p in model.named_parameters():
        if key.endswith(("offset", "gain")):
            torch.nn.init.normal_(p, mean=1, std=0.3)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_parameters_keep_to_their_budget_and_know_no_image_size(name: str) -> None:
    small, large = summarize(name), summarize(name, img_size=(96, 224))
    assert small.params == large.params <= MOST[name]
    assert abs(large.macs / small.macs / (96 * 224 / 32**2) - 1) < 0.01, "cost grows with the pixels"
    assert name == "lacaps_l" or max(small.macs, summarize(name, deep=True).macs) <= 45e6
    plain = summarize("lacaps_t_average")
    assert summarize("lacaps_t").params - plain.params < 30_000 and summarize("lacaps_t").macs - plain.macs < 1e6


def norm(weights: dict[str, Tensor], key: str, x: Tensor) -> Tensor:
    """BatchNorm in evaluation mode, channels second."""
    mean, var, weight, bias = (weights[f"{key}.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
    shape = (1, -1, 1, 1)
    return (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt() * weight.view(shape) + bias.view(shape)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def maps_by_hand(weights: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """The backbone from its weights."""
    x = (x - weights["normalize.mean"]) / weights["normalize.std"]
    maps, stage = [], 0
    while (start := f"backbone.stages.{stage}") and f"{start}.0.conv.weight" in weights:
        x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)) if stage else x
        x = F.conv2d(x, weights[f"{start}.0.conv.weight"], stride=2 if stage else 1, padding=0 if stage else 1)
        x, block = norm(weights, f"{start}.0.bn", x), 1
        while (key := f"{start}.{block}") and f"{key}.reduce.weight" in weights:
            kernel = weights[f"{key}.depthwise.weight"]
            y = F.conv2d(x, kernel, padding=kernel.shape[-1] // 2, groups=len(kernel))
            y = norm(weights, f"{key}.bn1", y)
            y = torch.einsum("bchw,dc->bdhw", y, weights[f"{key}.expand.weight"][..., 0, 0])  # [b, d, h, w]
            y = y + weights[f"{key}.expand.bias"][:, None, None]
            y = gelu(y)
            y = torch.einsum("bchw,dc->bdhw", y, weights[f"{key}.reduce.weight"][..., 0, 0])  # [b, d, h, w]
            x, block = x + norm(weights, f"{key}.bn2", y), block + 1
        maps.append(gelu(norm(weights, f"backbone.norms.{stage}", x)))
        stage += 1
    return maps


def patches_by_hand(f: Tensor, patch: int = 4) -> Tensor:
    """[b, c, h, w] -> [b, c, rows, columns]"""
    rows = [
        [part.mean((2, 3)) for part in strip.split(patch, 3)] for strip in f.split(patch, 2)
    ]  # the last one smaller
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


@torch.no_grad()
def test_equals_a_reference_from_its_weights() -> None:
    """Up to the votes; what becomes of them has its own loop in test_local_agreement.py."""
    model = trained_like(img_size=(21, 34), num_classes=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)).double()
    assert isinstance(model, LaCaps)
    x = torch.rand(2, 3, 21, 34, dtype=torch.float64)
    weights, named = model.state_dict(), model.forward_intermediates(x)
    maps = maps_by_hand(weights, x)
    assert [tuple(f.shape) for f in maps] == [(2, 32, 21, 34), (2, 64, 11, 17), (2, 128, 6, 9)]
    for i, f in enumerate(maps):
        torch.testing.assert_close(named[f"map.{i}"], f)
        u = torch.einsum("bchw,dc->bdhw", patches_by_hand(f), weights[f"patchify.{i}.project.weight"])  # [b, d, h, w]
        u = norm(weights, f"patchify.{i}.bn", u)
        torch.testing.assert_close(named[f"primary.{i}"], u.permute(0, 2, 3, 1))
    fine, mid, coarse = (
        torch.einsum("bhwd,dje->bhwje", named[f"primary.{i}"], weights["votes.w"]) + weights["votes.bias"]
        for i in range(3)
    )  # [b, h, w, j, e]
    mid, _ = model.routing[0](fine, mid)
    torch.testing.assert_close(named["routed.0"], mid)
    torch.testing.assert_close(model.forward_capsules(x), model.routing[2](*model.routing[1](mid, coarse)))


@settings(deadline=None, max_examples=8)
@given(height=st.integers(3, 50), width=st.integers(3, 50), patch=st.integers(2, 5), window=st.sampled_from([2, 4]))
@torch.no_grad()
def test_one_set_of_weights_takes_every_size(height: int, width: int, patch: int, window: int) -> None:
    options = {"patch": patch, "window": window}
    model = trained_like(num_classes=4, in_chans=2, **options)
    again = create_model("lacaps_t", num_classes=4, in_chans=2, img_size=(height, width), **options).eval()
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 2, height, width)
    assert torch.equal(model(x), again(x)) and model(x).shape == (2, 4)
    grids = [(t.shape[1], t.shape[2]) for t in again.forward_features(x)]
    assert [grid for _, grid in again.patch_grids()] == grids


def test_weights_move_to_another_size_whole(tmp_path) -> None:
    model = trained_like()
    save_weights(path := tmp_path / "w.safetensors", model, classes=list("abcdefghij"))
    larger = create_model("lacaps_t", pretrained=path, img_size=(48, 96))
    state = model.state_dict()
    assert all(torch.equal(t, state[key]) for key, t in larger.state_dict().items())


@torch.no_grad()
def test_plain_heads_have_the_same_backbone() -> None:
    model, x = trained_like(), torch.rand(2, 3, 32, 32)
    named = model.forward_intermediates(x)
    for name in ("lacaps_t_average", "lacaps_t_linear"):
        plain = create_model(name).eval()
        plain.backbone.stages.load_state_dict(model.backbone.stages.state_dict())  # type: ignore[union-attr]
        for theirs, ours in zip(reversed(plain.backbone.norms), reversed(model.backbone.norms), strict=False):  # type: ignore[union-attr,arg-type]
            theirs.load_state_dict(ours.state_dict())
        head = plain.get_classifier()
        seen = {key: t for key, t in plain.forward_intermediates(x).items() if key.startswith("map")}
        assert len(seen) == (1 if name.endswith("average") else 3)
        assert all(torch.equal(t, named[key]) for key, t in seen.items())
        patches = [named["map.2"].mean((2, 3))]
        if name.endswith("linear"):
            patches = [patches_by_hand(named[f"map.{i}"]).permute(0, 2, 3, 1).flatten(1) for i in range(3)]
        expected = torch.cat(patches, 1) @ head.weight.T + head.bias  # type: ignore[operator]
        torch.testing.assert_close(plain(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lacaps_t", "lacaps_t_average", "lacaps_t_linear"])
def test_the_loss_depends_on_all_that_is_trained(name: str) -> None:
    model = create_model(name, num_classes=3, img_size=16).train()
    model.training_loss(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]), model.criterion).backward()
    assert [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_vectors_offsets_and_gains_do_not_decay() -> None:
    model = create_model("lacaps_t")
    decayed = {name for name, _ in model.named_parameters()} - model.no_weight_decay()
    assert {"votes.w", "backbone.stages.0.1.depthwise.weight"} <= decayed
    assert not any(name.endswith((".offset", ".gain", ".bias", "bn.weight", "bn1.weight")) for name in decayed)


@torch.no_grad()
def test_hidden_wholes_have_no_vote_in_training_alone() -> None:
    model, plain = (trained_like(hide=hide) for hide in (0.25, 0.0))
    x, votes = torch.rand(64, 3, 32, 32), []
    assert model(x).equal(plain(x))
    for block in model.routing[:-1]:
        block.register_forward_pre_hook(lambda block, args: votes.append(args[1]))
    model.routing.eval()
    model(x)
    whole = list(votes)
    votes.clear()
    model.hide.train()
    model(x)
    for kept, vote, count in zip(votes, whole, (16, 4), strict=True):
        hidden = (kept == 0).flatten(3).all(3)
        assert 0.15 < hidden.float().mean() < 0.35 and hidden.shape[1:].numel() == count
        torch.testing.assert_close(kept[~hidden], vote[~hidden] / 0.75)


@pytest.mark.slow
def test_the_tree_accounts_for_the_length_on_every_scale() -> None:
    model = trained_like(img_size=(32, 40))
    found = mspcaps.explain(model, torch.rand(2, 3, 32, 40))
    assert found.has_tree and [state.name for state in found.routing] == ["routing.0", "routing.1", "routing.2"]
    root = found.tree(1, 3)
    assert root.length == pytest.approx(float(found.evidence[1, 3]), rel=1e-3)
    votes = [t[1, :, :, 3].flatten(0, 1) for t in (model.votes(u) for u in model.forward_features(found.images))]
    pooled = found.routing[-1]
    s = pooled.couplings[:, 1, 3] @ pooled.votes[-1][:, 1, 3]
    for coarse in root.children:
        own = coarse.coupling * float(votes[2][coarse.index] @ s / s.norm())
        assert coarse.contribution == pytest.approx(own + sum(n.contribution for n in coarse.children), abs=1e-5)
        for mid in coarse.children:
            own = coarse.coupling * mid.coupling * float(votes[1][mid.index] @ s / s.norm())
            assert mid.contribution == pytest.approx(own + sum(n.contribution for n in mid.children), abs=1e-5)
            near = [abs(2 * a + 0.5 - b) <= 2 for n in mid.children for a, b in zip(mid.place, n.place, strict=True)]
            assert all(near), "no part lies outside the window"
    assert sum(n.contribution for n in root.children) == pytest.approx(root.length, abs=1e-5)


@pytest.mark.parametrize(("options", "value"), [({"kernel": 4}, "4"), ({"window": 3}, "3"), ({"window": 1}, "1")])
def test_impossible_options_are_refused(options: dict[str, int], value: str) -> None:
    with pytest.raises(MspcapsError, match=f"{next(iter(options))} is {value}"):
        create_model("lacaps_t", **options)
