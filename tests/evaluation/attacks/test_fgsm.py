"""FGSM against gradients that were not made by autograd."""

import math

import pytest
import torch
from torch import nn

import mspcaps
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks import fgsm


class Linear(nn.Module):
    """Scores w x: the gradient of the cross-entropy is (softmax - one-hot) w, by hand."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.w.T


def test_against_the_formula_of_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    model = Linear(torch.randn(4, 12, generator=generator))
    images, labels = torch.rand(5, 3, 2, 2, generator=generator), torch.tensor([0, 1, 2, 3, 0])
    w = model.w.tolist()
    for eps in (0.0, 3 / 255, 0.5, 1.0):
        found = fgsm(model, images, labels, eps)
        for b, label in enumerate(labels.tolist()):
            scores = [sum(w * x for w, x in zip(row, images[b].flatten().tolist(), strict=True)) for row in w]
            powers = [math.exp(score) for score in scores]
            for i, x in enumerate(images[b].flatten().tolist()):
                slope = sum((power / sum(powers) - (k == label)) * w[k][i] for k, power in enumerate(powers))
                wanted = min(max(x + eps * math.copysign(1, slope), 0.0), 1.0)
                assert found[b].flatten()[i].item() == pytest.approx(wanted, abs=1e-6)


def test_against_finite_differences_of_a_capsule_network():
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=3, in_chans=1, img_size=16).eval().double()
    image, label = torch.rand(1, 1, 16, 16, dtype=torch.float64) * 0.8 + 0.1, torch.tensor([1])

    def loss(x):
        with torch.no_grad():
            scores = model(x)[0]
        return float(scores.exp().sum().log() - scores[1])

    moves = ((fgsm(model, image, label, 0.01) - image) / 0.01).round()
    slopes = torch.zeros(16, 16)
    for row in range(16):
        for column in range(16):
            step = torch.zeros_like(image)
            step[0, 0, row, column] = 1e-5
            slopes[row, column] = (loss(image + step) - loss(image - step)) / 2e-5
    clear = slopes.abs() > 1e-3 * slopes.abs().max()  # below that a difference of two losses says nothing
    assert clear.sum() > 200
    assert torch.equal(moves[0, 0][clear], slopes.sign()[clear].double())


def test_it_keeps_its_word():
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t", num_classes=3)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images, labels = torch.rand(2, 3, 32, 32), torch.tensor([0, 2])
    found = fgsm(model, images, labels, 8 / 255)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not found.requires_grad and float(found.min()) >= 0 and float(found.max()) <= 1
    assert float((found - images).abs().max()) <= 8 / 255 + 1e-6
    assert torch.equal(fgsm(model, images, labels, 0.0), images)
    alone = torch.cat([fgsm(model, images[i : i + 1], labels[i : i + 1], 8 / 255) for i in range(2)])
    assert (alone == found).double().mean() > 0.99, "the images of a batch do not see each other"


def test_a_sure_model_still_has_a_gradient():
    """Where the margin loss is flat, the cross-entropy is not."""
    model = Linear(torch.eye(2, 4) * 0.95)
    image = torch.tensor([1.0, 0.05, 0.5, 0.5]).view(1, 1, 2, 2)
    moved = fgsm(model, image, torch.tensor([0]), 0.1).flatten()
    assert moved.tolist() == pytest.approx([0.9, 0.15, 0.5, 0.5])


@pytest.mark.parametrize("eps", [-0.1, 1.5, math.nan, math.inf])
def test_a_budget_that_makes_no_sense(eps):
    with pytest.raises(MspcapsError, match="must lie between 0 and 1"):
        fgsm(Linear(torch.eye(2, 4)), torch.rand(1, 1, 2, 2), torch.tensor([0]), eps)


def test_a_frozen_norm_stays_frozen():
    model = mspcaps.create_model("mspcaps_t_scale16", in_chans=1, img_size=16).train()
    model.backbone.blocks[0].first.bn.eval()
    fgsm(model, torch.rand(2, 1, 16, 16), torch.tensor([0, 1]), 0.1)
    assert model.training and not model.backbone.blocks[0].first.bn.training


def test_images_and_labels_that_make_no_sense():
    model, images, labels = Linear(torch.eye(2, 4)), torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    with pytest.raises(MspcapsError, match="divide bytes by 255"):
        fgsm(model, (images * 255).byte(), labels, 0.1)
    with pytest.raises(MspcapsError, match="labels run from 1 to 2, but there are 2 classes"):
        fgsm(model, images, labels + 1, 0.1)
