"""Muon against PyTorch's and against plain loops in NumPy; its parameters; vectors without weight decay."""

import numpy as np
import pytest
import torch
from torch import nn

from mspcaps.errors import MspcapsError
from mspcaps.models import Model, Task, create_model
from mspcaps.models.layers import use_channels_last
from mspcaps.models.model import make_task
from mspcaps.training import Recipe
from mspcaps.training.muon import muon_shapes, orthogonalize
from mspcaps.training.optimizers import FlatOptimizer


class Mixed(Model):
    """A layer of every kind: plain, grouped and depthwise convolutions, linear ones, norms, and a classifier."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.config = self.config | {"name": "mixed"}
        self.plain, self.grouped = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, groups=4)
        self.depthwise, self.norm = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12)
        self.wide, self.tall = nn.Linear(12, 5, bias=False), nn.Linear(5, 20)
        self.position, self.head = nn.Parameter(torch.randn(4, 20)), nn.Linear(20, task.num_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.norm(self.depthwise(self.grouped(self.plain(x)).tanh())).mean((2, 3))
        return self.tall(self.wide(maps)).tanh() * self.position.mean(0)

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)

    def get_classifier(self) -> nn.Module:
        return self.head


MATRICES = {"plain.weight": (1, 8, 27), "grouped.weight": (4, 3, 18), "wide.weight": (1, 5, 12)} | {
    "tall.weight": (1, 20, 5)
}


def make() -> Mixed:
    torch.manual_seed(0)
    model = Mixed(make_task("mixed", 4, 3, 8, None, None))
    use_channels_last(model)
    return model


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """One matrix, in double precision."""
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / np.sqrt((x**2).sum())
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 30, 30), (5, 2, 2)])
def test_matrices_become_nearly_orthogonal(shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    got = orthogonalize(x).double().numpy()
    for matrix, result in zip(x.double().numpy(), got, strict=True):
        np.testing.assert_allclose(result, newton_schulz(matrix), atol=2e-5)
        u, _, v = np.linalg.svd(matrix, full_matrices=False)
        values = np.diag(u.T @ result @ v.T)
        np.testing.assert_allclose(result, u @ np.diag(values) @ v, atol=1e-4, err_msg="the singular vectors are kept")
        assert values[:-1].min() > 0.6 and values.max() < 1.3, "the smallest of a square matrix may lag behind"
    assert not orthogonalize(torch.zeros(shape)).any()


def test_it_takes_matrices_and_leaves_the_rest() -> None:
    assert muon_shapes(make()) == MATRICES
    names = muon_shapes(create_model("mspcaps_t"))
    assert len(names) == 9 and all(name.endswith(("conv.weight", "project.weight")) for name in names)
    small = create_model("resnet20")
    head = {f"{path}.weight" for path, module in small.named_modules() if module is small.get_classifier()}
    assert len(head) == 1 and not head & muon_shapes(small).keys()
    model = make()
    model.get_classifier = lambda: model  # type: ignore[method-assign]
    with pytest.raises(MspcapsError, match="muon_lr"):
        FlatOptimizer(model, Recipe(muon_lr=0.1))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_ten_steps_equal_plain_loops_and_the_optimizer_of_the_recipe(optimizer: str) -> None:
    """One matrix at a time in NumPy; everything else by PyTorch's optimizer."""
    recipe = Recipe(optimizer=optimizer, lr=1e-2, muon_lr=0.05, weight_decay=0.1, momentum=0.8)  # type: ignore[arg-type]
    ours, theirs = make(), make()
    flat = FlatOptimizer(ours, recipe)
    (matrices,) = (group for group in flat.groups if group.shapes)
    assert dict(zip(matrices.params, matrices.shapes, strict=True)) == MATRICES
    rest = [p for name, p in theirs.named_parameters() if name not in MATRICES]
    companion: torch.optim.Optimizer = torch.optim.AdamW(rest, 1e-2, weight_decay=0.1)
    if optimizer == "sgd":
        companion = torch.optim.SGD(rest, 1e-2, momentum=0.8, weight_decay=0.1)
    weights = {name: p.detach().double().numpy() for name, p in theirs.named_parameters() if name in MATRICES}
    velocity = {name: np.zeros_like(weight) for name, weight in weights.items()}
    generator = torch.Generator().manual_seed(2)
    for step in range(10):
        rate = (step + 1) / 10
        gradients = {
            name: torch.randn(p.shape, generator=generator) * (step + 1) for name, p in theirs.named_parameters()
        }
        flat.lr.fill_(1e-2 * rate)
        flat.step(flat.flat_gradients([gradients[name] for name in flat.masters()]))
        for group in companion.param_groups:
            group["lr"] = 1e-2 * rate
        for name, p in theirs.named_parameters():
            p.grad = gradients[name]
        companion.step()
        for name, (groups, rows, columns) in MATRICES.items():
            g = gradients[name].double().numpy()
            velocity[name] = 0.8 * velocity[name] + g
            weights[name] = weights[name] * (1 - 0.05 * rate * 0.1)
            towards = (g + 0.8 * velocity[name]).reshape(groups, rows, columns)
            for i in range(groups):
                change = 0.05 * rate * max(1.0, rows / columns) ** 0.5 * newton_schulz(towards[i])
                part = weights[name][i * rows : (i + 1) * rows]
                part -= change.reshape(part.shape)
    for name, tensor in flat.masters().items():
        want = weights.get(name, dict(theirs.named_parameters())[name].detach().numpy())
        np.testing.assert_allclose(tensor.detach(), want, atol=3e-5, err_msg=name)
    assert ours.plain.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_step_goes_where_torchs_goes() -> None:
    """PyTorch's computes in bf16, so only approximately, and it takes only matrices."""
    recipe = Recipe(lr=1e-2, muon_lr=0.1, weight_decay=0.1, momentum=0.95)
    ours, theirs = make(), make()
    flat, names = FlatOptimizer(ours, recipe), ("wide.weight", "tall.weight")
    matrices = {name: p for name, p in theirs.named_parameters() if name in names}
    reference = torch.optim.Muon(matrices.values(), lr=0.1, weight_decay=0.1, momentum=0.95)
    before = {name: p.detach().clone() for name, p in matrices.items()}
    flat.lr.fill_(1e-2)
    for _ in range(3):
        gradients = {name: torch.randn_like(p) for name, p in theirs.named_parameters()}
        flat.step(flat.flat_gradients([gradients[name] for name in flat.masters()]))
        for name, p in matrices.items():
            p.grad = gradients[name]
        reference.step()
    for name, p in matrices.items():
        moved, want = flat.masters()[name] - before[name], p.detach() - before[name]
        assert (moved - want).norm() < 0.02 * want.norm(), name


def test_vectors_do_not_decay_if_the_recipe_says_so() -> None:
    model = make()
    flat = FlatOptimizer(model, Recipe(lr=0.1, weight_decay=0.5, decay_vectors=False))
    before = {name: tensor.clone() for name, tensor in flat.masters().items()}
    flat.lr.fill_(0.1)
    flat.step(flat.flat_gradients([torch.zeros_like(p) for p in flat.params]))  # nothing but the decay
    for name, tensor in flat.masters().items():
        assert torch.equal(tensor, before[name] if tensor.ndim < 2 else before[name] * (1 - 0.1 * 0.5)), name


def test_working_copies_follow_the_masters() -> None:
    model = make()
    flat = FlatOptimizer(model, Recipe(muon_lr=0.1, weight_decay=0.0), torch.bfloat16)
    before = flat.masters()["plain.weight"].clone()
    flat.lr.fill_(5e-4)
    flat.step(flat.flat_gradients([torch.randn_like(p) for p in flat.params]))
    for name, p in model.named_parameters():
        assert torch.equal(p, flat.masters()[name].to(p.dtype)) and (p.dtype == torch.bfloat16) == (p.ndim > 1), name
    assert (flat.masters()["plain.weight"] - before).norm() > 0.1
    assert {name for name in flat.tensors() if name.endswith("plain.weight")} == {
        "master.plain.weight",
        "velocity.plain.weight",
    }


def test_a_bad_rate_is_refused() -> None:
    with pytest.raises(MspcapsError, match=r"muon_lr is -0\.1"):
        Recipe(muon_lr=-0.1)
