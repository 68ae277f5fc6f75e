"""Our AdamW and our learning rate against PyTorch's."""

import pytest
import torch
from torch import nn

from mspcaps.training.optimizer import FlatAdamW
from mspcaps.training.recipe import Recipe
from mspcaps.training.schedule import learning_rate


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 16, 4)
    )
    model[0].weight.data = model[0].weight.data.contiguous(memory_format=torch.channels_last)
    return model


def test_adamw_equals_torch() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 6, 6), torch.randint(4, (8,))
    ours, theirs = small_model(), small_model()
    flat = FlatAdamW(ours, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(10):
        lr = 1e-2 * (step + 1) / 10
        flat.lr.fill_(lr)
        reference.param_groups[0]["lr"] = lr
        for model in (ours, theirs):
            model.zero_grad()
        flat.step(flat.flat_gradients(torch.autograd.grad(nn.functional.cross_entropy(ours(x), y), flat.params)))
        nn.functional.cross_entropy(theirs(x), y).backward()
        reference.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-5), name


def test_working_copies_follow_the_masters() -> None:
    model = small_model()
    flat = FlatAdamW(model, weight_decay=0.0, matrix_dtype=torch.bfloat16)
    flat.lr.fill_(1e-2)
    flat.step(flat.flat_gradients([torch.randn_like(p) for p in flat.params]))
    masters = {name[7:]: t for name, t in flat.tensors().items() if name.startswith("master.")}
    for name, p in model.named_parameters():
        assert p.dtype == (torch.bfloat16 if p.ndim >= 2 else torch.float32), name
        assert torch.equal(p, masters[name].to(p.dtype)) and masters[name].dtype == torch.float32, name
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_learning_rate_equals_torchs_schedulers() -> None:
    recipe = Recipe(epochs=40)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=35, eta_min=1e-6)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[5])
    for epoch in range(40):
        assert abs(learning_rate(recipe, epoch) - optimizer.param_groups[0]["lr"]) < 1e-10, epoch
        optimizer.step()
        scheduler.step()


def test_a_run_without_warm_up_begins_at_the_full_rate_and_falls_towards_the_least() -> None:
    recipe = Recipe(epochs=4, warmup_epochs=0, lr=1.0, min_lr=0.2)
    rates = [learning_rate(recipe, epoch) for epoch in range(4)]
    assert rates == pytest.approx([1.0, 0.6 + 0.4 * 2**-0.5, 0.6, 0.6 - 0.4 * 2**-0.5])
