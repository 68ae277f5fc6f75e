"""A whole model with our kernels in place of its layers: the same scores and gradients."""

import pytest
import torch
from torch.nn.utils import parametrizations, prune

from mspcaps.capsules import CrossAgreementRouting, MeanAgreementRouting
from mspcaps.models import create_model
from mspcaps.models import fused as way
from mspcaps.models.mspcaps import MSPCaps


@pytest.mark.parametrize("name", ["mspcaps_t", "mspcaps_t_unshared"])
def test_equals_the_layers(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model(name, img_size=16).to(device).train()
    x, labels = torch.rand(2, 3, 16, 16, device=device), torch.tensor([1, 7], device=device)
    found = []
    for fused in (False, True):
        for kind in (MSPCaps, CrossAgreementRouting):
            monkeypatch.setattr(kind, "runs_fused", lambda self, x, fused=fused: fused)
        scores = model(x)
        found.append([scores, *torch.autograd.grad(model.loss(scores, labels), list(model.parameters()))])
    for plain, ours in zip(*found, strict=True):
        assert (plain - ours).norm() <= 1e-3 * plain.norm() + 1e-6


class PretendsToBeOnAGPU(torch.Tensor):
    """Lets a machine without a GPU ask which way a GPU would go."""

    is_cuda = True


X = torch.rand(2, 3, 16, 16).as_subclass(PretendsToBeOnAGPU)
CHANGES = {
    "a hook": lambda model: model.blocks[1].rest[0].bn.register_forward_hook(lambda *_: None),
    "a hook on a block": lambda model: model.blocks[0].register_forward_pre_hook(lambda *_: None),
    "a hook on a projection": lambda model: model.patchify[2].project.register_forward_hook(lambda *_: None),
    "a hook of gradients": lambda model: model.patchify[0].register_full_backward_hook(lambda *_: None),
    "pruning": lambda model: prune.l1_unstructured(model.blocks[2].first.conv, "weight", 0.5),
    "a parametrisation": lambda model: parametrizations.weight_norm(model.blocks[0].first.conv),
    "an adapter": lambda model: setattr(model.patchify[1], "project", torch.nn.Sequential(model.patchify[1].project)),
    "a frozen norm": lambda model: model.blocks[0].first.bn.eval(),
    "another eps": lambda model: setattr(model.blocks[0].first.bn, "eps", 1e-3),
    "a cumulative average": lambda model: [setattr(layer.bn, "momentum", None) for layer in model.layers()],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_or_is_listened_to_is_called(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "TRITON", True)
    model = create_model("mspcaps_t", img_size=16).train()
    assert model.runs_fused(X) and not model.eval().runs_fused(X)
    CHANGES[change](model.train())
    assert not model.runs_fused(X)


def test_other_values_of_the_norms_are_handed_on(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = create_model("mspcaps_t_scale16", img_size=16).to(device).train()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eps, module.momentum = 0.5, 0.7
            elif isinstance(module, torch.nn.LayerNorm):
                module.eps = 0.3
        monkeypatch.setattr(MSPCaps, "runs_fused", lambda self, x, fused=fused: fused)
        found.append((model.forward_primary(torch.rand(2, 3, 16, 16, device=device))[0], model.layers()[-1].bn))
    (plain, norm), (ours, our_norm) = found
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(our_norm.running_var, norm.running_var, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("hooks", [0, 1])
def test_the_compiler_can_follow_the_question(hooks: int) -> None:
    torch._dynamo.reset()
    model = create_model("mspcaps_t", img_size=16).train()
    for _ in range(hooks):  # beforehand: PyTorch's compiler does not look at hooks again
        model.patchify[0].register_forward_hook(lambda *_: None)
    asked = torch.compile(lambda x: x if model.can_be_fused() else x + 1, backend="eager", fullgraph=True)
    assert asked(torch.zeros(1)) == hooks


def test_a_routing_of_another_kind_does_not_take_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspcaps.capsules.routing.cross_agreement.TRITON", True)
    u = torch.rand(2, 4, 8).as_subclass(PretendsToBeOnAGPU)
    sizes = ((2, 2), 8, (2, 2), 8, 3, 16, True)
    assert CrossAgreementRouting(*sizes).runs_fused(u) and not MeanAgreementRouting(*sizes).runs_fused(u)
