"""`fuse`: a twin that shares the parameters and computes the same, or the model itself if that is not certain."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from mspcaps.kernels import fuse, fused
from mspcaps.kernels.fused import (
    DepthwiseConv,
    FusedBackbone,
    FusedPatchify,
    GroupedConv,
    JointVotes,
    PatchConv,
    faster_conv,
)
from mspcaps.models import Model, create_model
from mspcaps.models.layers import ConvBN, Dropout
from mspcaps.models.mspcaps import TINY, MSPCaps

NAMES = ["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_dr", "mspcaps_t_scale16", "mspcaps_t_scale32_16",
         "mspcaps_t_linear", "mspcaps_t_linear_margin", "resnet20", "lacaps_t", "ar_capsnet"]  # fmt: skip


def trained_once(model: Model, run: Model, device: torch.device) -> list[Tensor]:
    """-> loss, gradients of the parameters, buffers after one forward pass of `run`, which shares those of `model`."""
    generator = torch.Generator().manual_seed(3)
    x, y = torch.rand(2, 3, *model.img_size, generator=generator).to(device), torch.tensor([1, 7], device=device)
    loss = run.training_loss(x, y, run.criterion)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return [loss.detach(), *grads, *[b.clone() for b in model.buffers()]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mspcaps_t", 16),
        ("mspcaps_t_unshared", 13),
        ("mspcaps_t_scale16", 9),
        ("mspcaps_t_linear", 13),
        ("resnet20", 9),
        ("lacaps_t", 9),
        ("ar_capsnet", 9),
    ],
)
def test_equals_the_model(name: str, size: int, device: torch.device) -> None:
    model = create_model(name, img_size=size).to(device).train()
    other = copy.deepcopy(model)
    twin = fuse(model)
    assert twin is not model and type(twin) is type(model)
    names = [key for key, _ in model.named_parameters()]
    expected, found = trained_once(other, other, device), trained_once(model, twin, device)
    for key, a, b in zip(["loss", *names, *dict(model.named_buffers())], expected, found, strict=True):
        assert (a - b).double().norm() <= 1e-3 * a.double().norm() + 1e-6, key


@pytest.mark.parametrize("name", NAMES)
def test_shares_everything_and_leaves_the_model_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TRITON", True)
    model = create_model(name, img_size=16).train()
    modules = dict(model.named_modules())
    twin = fuse(model)
    assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
    assert {id(b) for b in twin.buffers()} == {id(b) for b in model.buffers()}
    assert dict(model.named_modules()) == modules
    assert twin.config is model.config and twin.training
    kinds = {type(m) for m in twin.modules()} - {type(m) for m in model.modules()} - {JointVotes}
    fully = {FusedBackbone, nn.Identity} if "linear" in name else {FusedBackbone, FusedPatchify}
    others = {
        "resnet20": {PatchConv}, "lacaps_t": {PatchConv, DepthwiseConv}, "ar_capsnet": {PatchConv, GroupedConv},
    }  # fmt: skip
    assert kinds == others.get(name, fully)


@pytest.mark.parametrize("options", [{"position": False}, {"decoder": True}])
def test_options_of_t_are_those_of_the_twin(options: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without positions the plain modules make the capsules: the kernel always adds positions."""
    monkeypatch.setattr(fused, "TRITON", True)
    model = create_model("mspcaps_t", img_size=16, **options).train()
    twin, averages = fuse(model), [torch.rand(2, n, c) for n, c in ((16, 32), (4, 64), (1, 128))]
    assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
    assert isinstance(twin.backbone, FusedBackbone) and twin.decoder is model.decoder
    if "position" in options:
        expected = [layer.embed(u) for layer, u in zip(model.patchify, averages, strict=True)]
        assert all(map(torch.equal, twin.patchify(averages), expected))


def backbone(model: Model) -> Any:
    return model.backbone


def wrap(parent: nn.Module, name: str) -> None:
    setattr(parent, name, nn.Sequential(parent.get_submodule(name)))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda model: model.backbone.blocks[1].rest[0].bn.register_forward_hook(lambda *_: None),
    "a hook on a block": lambda model: model.backbone.blocks[0].register_forward_pre_hook(lambda *_: None),
    "a hook on the backbone": lambda model: model.backbone.register_forward_hook(lambda *_: None),
    "a hook on all scales": lambda model: model.patchify.register_forward_hook(lambda *_: None),
    "a hook on a projection": lambda model: model.patchify[2].project.register_forward_hook(lambda *_: None),
    "a hook of gradients": lambda model: model.patchify[0].register_full_backward_hook(lambda *_: None),
    "pruning": lambda model: prune.l1_unstructured(model.backbone.blocks[2].first.conv, "weight", 0.5),
    "a parametrisation": lambda model: parametrizations.weight_norm(model.backbone.blocks[0].first.conv),
    "an adapter": lambda model: setattr(model.patchify[1], "project", nn.Sequential(model.patchify[1].project)),
    "an adapter in place of forward": lambda model: setattr(
        model.backbone.blocks[1].first.conv, "forward", lambda x: x[:, :, ::2, ::2].repeat(1, 2, 1, 1)
    ),
    "an adapter around a block": lambda model: wrap(model.backbone.blocks, "1"),
    "an adapter around a layer": lambda model: wrap(model.backbone.blocks[1], "first"),
    "another kernel": lambda model: setattr(
        model.backbone.blocks[0].first, "conv", nn.Conv2d(3, 32, 5, padding=2, bias=False)
    ),
    "another bias": lambda model: setattr(model.backbone.blocks[0].first, "conv", nn.Conv2d(3, 32, 3, padding=1)),
    "a norm without a bias": lambda model: setattr(model.patchify[0], "norm", nn.LayerNorm(8, bias=False)),
    "a frozen norm": lambda model: model.backbone.blocks[0].first.bn.eval(),
    "another eps": lambda model: setattr(model.backbone.blocks[0].first.bn, "eps", 1e-3),
    "a cumulative average": lambda model: [
        setattr(m, "momentum", None) for m in model.modules() if isinstance(m, nn.BatchNorm2d)
    ],
    "checkpoints": lambda model: model.set_grad_checkpointing(),
    "eval mode": lambda model: model.eval(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_or_hooked_modules_are_called(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TRITON", True)
    model = create_model("mspcaps_t", img_size=16).train()
    assert isinstance(fuse(model).backbone, FusedBackbone)
    CHANGES[change](model)
    modes = [module.training for module in model.modules()]
    twin = fuse(model)
    assert not any(isinstance(m, FusedBackbone | FusedPatchify) for m in twin.modules())
    assert [module.training for module in twin.modules()] == modes
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-4, atol=1e-5)


def test_hooks_fire_in_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TRITON", True)
    model, heard = create_model("mspcaps_t", img_size=16).train(), []
    backbone(model).blocks[0].first.register_forward_hook(lambda *_: heard.append(1))
    fuse(model)(torch.rand(2, 3, 16, 16))
    assert heard == [1]


def test_a_custom_family_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does something between backbone and capsules, it must see the maps, not their averages."""
    monkeypatch.setattr(fused, "TRITON", True)

    class Own(MSPCaps):
        def forward_features(self, x: Tensor) -> list[Tensor]:
            return self.patchify([2 * f for f in self.backbone(self.normalize(x))])

    from mspcaps.models.model import make_task

    model = Own(make_task("own", 4, 3, 16, None, None), TINY).train()
    assert not any(isinstance(m, FusedBackbone) for m in fuse(model).modules())


def test_modules_that_are_not_replaced_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a key that a step later gives a Dropout layer reaches the twin."""
    monkeypatch.setattr(fused, "TRITON", True)
    model = create_model("mspcaps_t", img_size=16).train()
    model.add_module("dropout", Dropout(0.5))
    twin = fuse(model)
    assert twin.dropout is model.dropout and twin.normalize is model.normalize
    assert all(a.w2 is b.w2 and a is not b for a, b in zip(twin.routing, model.routing, strict=True))


def test_blocks_may_differ_in_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TRITON", True)
    model = create_model("mspcaps_t", img_size=16).train()
    backbone(model).blocks[1].rest.append(ConvBN(64, 64))
    twin = backbone(fuse(model))
    assert twin.shortcuts == [False, True, False, True, True, False, True]
    assert twin.pools == [False, True, False, False, True, False, True]


def test_nothing_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "TRITON", False)
    model = create_model("resnet20", in_chans=5).train()
    assert fuse(model) is model, "PatchConv is for few channels"


@pytest.mark.slow
def test_other_settings_of_the_norms_are_passed_on(device: torch.device) -> None:
    model = create_model("mspcaps_t_scale16", img_size=9).to(device).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = 0.5, 0.7
        elif isinstance(module, nn.LayerNorm):
            module.eps = 0.3
    other = copy.deepcopy(model)
    expected, found = trained_once(other, other, device), trained_once(model, fuse(model), device)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hooked"),
    [("mspcaps_t", False), ("mspcaps_t", True), ("resnet20", False), ("lacaps_t", False), ("ar_capsnet", False)],
)
def test_the_compiler_follows(name: str, hooked: bool, device: torch.device) -> None:
    torch._dynamo.reset()
    model = create_model(name, img_size=13).to(device).train()
    other = copy.deepcopy(model)
    if hooked:
        model.get_submodule("patchify.0").register_forward_hook(lambda *_: None)
    twin = fuse(model)
    x, y = torch.rand(2, 3, 13, 13, device=device), torch.tensor([1, 7], device=device)
    whole = torch.compile(lambda x: twin.training_loss(x, y, twin.criterion), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x), other.training_loss(x, y, other.criterion), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chans", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(8, 8), (5, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_patch_product_equals_the_convolution(chans: int, size: tuple[int, int], bias: bool) -> None:
    conv = nn.Conv2d(chans, 6, 3, padding=1, bias=bias).double()
    x = torch.randn(2, chans, *size, dtype=torch.float64)
    expected, found = F.conv2d(x, conv.weight, conv.bias, padding=1), PatchConv(conv)(x)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(y.square().sum(), list(conv.parameters())) for y in (expected, found)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize(
    ("chans", "groups", "kernel", "stride", "padding"),
    [((4, 12), 2, 3, 1, 1), ((6, 9), 3, 3, 2, 1), ((8, 8), 4, (3, 5), (2, 1), (1, 0)), ((4, 4), 2, 1, 3, 2)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_the_batched_product_equals_the_grouped_convolution(
    chans: tuple[int, int], groups: int, kernel: Any, stride: Any, padding: Any, bias: bool
) -> None:
    conv = nn.Conv2d(*chans, kernel, stride, padding, groups=groups, bias=bias).double()
    x, twin = torch.randn(2, chans[0], 7, 6, dtype=torch.float64, requires_grad=True), faster_conv(conv)
    assert isinstance(twin, GroupedConv)
    expected, found = conv(x), twin(x)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(y.square().sum(), [x, *conv.parameters()]) for y in (expected, found)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(b, a)
