"""Our optimizers and learning rates against PyTorch's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from mspcaps.errors import MspcapsError
from mspcaps.models.layers import use_channels_last
from mspcaps.training.optimizers import FlatOptimizer, learning_rate
from mspcaps.training.recipe import Recipe

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "adam": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd", "momentum": 0.0},
    "momentum": {"optimizer": "sgd"},
    "nesterov": {"optimizer": "sgd", "nesterov": True},
}


class Small(nn.Sequential):
    """A model that exempts parameters from weight decay and from bf16."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 16, 4)
        )
        self[0].weight.data = self[0].weight.data.contiguous(memory_format=torch.channels_last)

    def no_weight_decay(self) -> set[str]:
        return set()

    def fp32_parameters(self) -> set[str]:
        return set()


class Particular(Small):
    def no_weight_decay(self) -> set[str]:
        return {"1.weight", "1.bias", "4.weight"}

    def fp32_parameters(self) -> set[str]:
        return {"4.weight"}


def torch_optimizer(model: Small, recipe: Recipe) -> torch.optim.Optimizer:
    exempt = model.no_weight_decay()
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if (name in exempt) == bare], "weight_decay": decay}
        for bare, decay in ((False, recipe.weight_decay), (True, 0.0))
    ]  # fmt: skip
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
    return (torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam)(groups, recipe.lr)


@pytest.mark.parametrize("kind", [Small, Particular])
@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_equal_torchs(name: str, clip: float, kind: type[Small]) -> None:
    """Up to the rounding of single operations; SGD without clipping bit for bit."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 6, 6), torch.randint(4, (8,))
    recipe = Recipe(lr=1e-2, weight_decay=0.1, clip_grad=clip, **OPTIMIZERS[name])
    ours, theirs = kind(), kind()
    flat, reference = FlatOptimizer(ours, recipe), torch_optimizer(theirs, recipe)
    for step in range(10):
        lr = 1e-2 * (step + 1) / 10
        flat.lr.fill_(lr)
        for group in reference.param_groups:
            group["lr"] = lr
        theirs.zero_grad()
        flat.step(flat.flat_gradients(torch.autograd.grad(nn.functional.cross_entropy(ours(x), y), flat.params)))
        nn.functional.cross_entropy(theirs(x), y).backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            assert (norm > clip) == (clip < 1), "half of the cases are clipped"
        reference.step()
    worst = 2e-5 if name.startswith("adam") else 1e-6
    for (key, a), b, start in zip(ours.named_parameters(), theirs.parameters(), kind().parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=worst), key
        assert clip or name.startswith("adam") or torch.equal(a, b), key
        assert not torch.allclose(a, start, rtol=0, atol=10 * worst), "it has moved"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_equals_torchs_to_the_last_bits(name: str) -> None:
    """From equal weights and gradients, so no error of an earlier step carries over. Adam corrects its second moment by
    1 minus a power of 0.999, which single precision holds to four digits after the first step."""
    recipe = Recipe(lr=0.1, weight_decay=0.1, **OPTIMIZERS[name])
    ours, theirs = Particular(), Particular()
    flat, reference = FlatOptimizer(ours, recipe), torch_optimizer(theirs, recipe)
    flat.lr.fill_(recipe.lr)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        q.grad = torch.randn_like(q)
        p.grad = q.grad.clone()
    flat.step(flat.flat_gradients([p.grad for p in flat.params]))
    reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 if name.startswith("adam") else 1e-7)


def test_working_copies_follow_the_masters() -> None:
    model = Small()
    flat = FlatOptimizer(model, Recipe(weight_decay=0.0), torch.bfloat16)
    flat.lr.fill_(1e-2)
    flat.step(flat.flat_gradients([torch.randn_like(p) for p in flat.params]))
    masters = flat.masters()
    for name, p in model.named_parameters():
        assert p.dtype == (torch.bfloat16 if p.ndim >= 2 else torch.float32), name
        assert torch.equal(p, masters[name].to(p.dtype)) and masters[name].dtype == torch.float32, name
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_weights_of_one_input_channel_keep_the_strides_of_their_layout() -> None:
    """They are in both layouts at once; the compiler takes the strides at their word and converts the maps to match."""
    model = Particular()
    model[0] = nn.Conv2d(3, 3, 5, groups=3, bias=False)
    before = model[0].weight.detach().clone()
    use_channels_last(model)
    optimizer = FlatOptimizer(model, Recipe())
    strides = torch.empty(3, 1, 5, 5, memory_format=torch.channels_last).stride()
    assert model[0].weight.stride() == optimizer.masters()["0.weight"].stride() == strides != before.stride()
    assert torch.equal(model[0].weight, before)


def test_the_model_exempts_parameters_from_bf16_and_decay() -> None:
    model = Particular()
    flat = FlatOptimizer(model, Recipe(lr=0.1, weight_decay=0.5), torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16 and model[4].weight.dtype == torch.float32
    before = {name: tensor.clone() for name, tensor in flat.masters().items()}
    flat.lr.fill_(0.1)
    flat.step(flat.flat_gradients([torch.zeros_like(p) for p in flat.params]))  # nothing but the decay
    for name, tensor in flat.masters().items():
        expected = before[name] if name in model.no_weight_decay() else before[name] * (1 - 0.1 * 0.5)
        assert torch.equal(tensor, expected), name
    model.no_weight_decay = lambda: {"5.weight"}  # type: ignore[method-assign]
    with pytest.raises(MspcapsError, match=r"5\.weight"):
        FlatOptimizer(model, Recipe())


def torch_rates(recipe: Recipe, later: Any) -> list[float]:
    """The rates of PyTorch's schedulers, after a linear warm-up if there is one."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    scheduler: Any = later(optimizer)
    if recipe.warmup_epochs:
        warmup = lr_scheduler.LinearLR(optimizer, recipe.warmup_start, total_iters=recipe.warmup_epochs)
        scheduler = lr_scheduler.SequentialLR(optimizer, [warmup, scheduler], milestones=[recipe.warmup_epochs])
    rates = []
    for _ in range(recipe.epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def learning_rates(recipe: Recipe) -> list[float]:
    return [learning_rate(recipe, epoch) for epoch in range(recipe.epochs)]


@pytest.mark.parametrize(("epochs", "warmup"), [(300, 5), (50, 5), (49, 4), (30, 3), (10, 1), (9, 0), (3, 0), (1, 0)])
def test_the_default_warm_up_is_at_most_a_tenth_of_the_run(epochs: int, warmup: int) -> None:
    recipe = Recipe(epochs=epochs, lr=0.1, min_lr=0.0)
    rates = learning_rates(recipe)
    assert recipe.resolve().warmup_epochs == warmup and max(rates) == rates[warmup] == 0.1
    assert all(rate < 0.1 for rate in rates[:warmup])
    assert rates == learning_rates(recipe.resolve()) == learning_rates(Recipe(**vars(recipe.resolve())))
    assert Recipe(epochs=epochs, warmup_epochs=5).resolve().warmup_epochs == 5


@pytest.mark.parametrize("warmup", [0, 5])
def test_learning_rates_equal_torchs_schedulers(warmup: int) -> None:
    common: dict[str, Any] = {"epochs": 40, "warmup_epochs": warmup, "lr": 0.1, "min_lr": 1e-9}
    cases: list[tuple[Recipe, Any]] = [
        (Recipe(**common), lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=40 - warmup, eta_min=1e-9)),
        (Recipe(**common, schedule="exponential", lr_gamma=0.9), lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9)),
        (Recipe(**common, schedule="constant"), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (
            Recipe(**common, schedule="steps", lr_gamma=0.2, lr_steps=(12, 30)),  # epochs of the run, warm-up included
            lambda o: lr_scheduler.MultiStepLR(o, [12 - warmup, 30 - warmup], gamma=0.2),
        ),
    ]
    for recipe, later in cases:
        assert learning_rates(recipe) == pytest.approx(torch_rates(recipe, later), abs=1e-10), recipe.schedule


def test_a_run_without_warm_up_begins_at_the_full_rate_and_falls_towards_the_least() -> None:
    recipe = Recipe(epochs=4, warmup_epochs=0, lr=1.0, min_lr=0.2)
    assert learning_rates(recipe) == pytest.approx([1.0, 0.6 + 0.4 * 2**-0.5, 0.6, 0.6 - 0.4 * 2**-0.5])


def test_no_schedule_falls_below_the_least_rate() -> None:
    recipe = Recipe(epochs=4, warmup_epochs=0, lr=1.0, min_lr=0.2, schedule="exponential", lr_gamma=0.5)
    assert learning_rates(recipe) == pytest.approx([1.0, 0.5, 0.25, 0.2])
