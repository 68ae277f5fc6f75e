"""A whole model with our kernels in place of its layers: the same scores and gradients."""

import pytest
import torch

from mspcaps.capsules import CrossAgreementRouting
from mspcaps.models import create_model
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
