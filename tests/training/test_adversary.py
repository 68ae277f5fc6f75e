"""Adversarial training: the attack inside a step is the attack outside it, and it makes a model robust."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_makers import bars

from mspcaps.data import Augmentation, ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, create_model
from mspcaps.models.layers import ConvBN
from mspcaps.models.model import make_task
from mspcaps.training import Recipe, Trainer, list_recipes, load_recipe, train
from mspcaps.training.average import frozen_twin
from mspcaps.training.device import compiler_works
from mspcaps.training.distributed import World
from mspcaps.training.evaluator import RobustEvaluator
from mspcaps.training.images import load_images
from mspcaps.training.loader import Loader, take_batch
from mspcaps.training.objective import RobustLoss, as_logits, hashed_start
from mspcaps.training.recipe import Adversary, recipe_folder, stored_recipe
from mspcaps.training.step import Step
from mspcaps.training.sweep import load_sweep

CPU = torch.device("cpu")
KINDS = ("pgd", "trades")


def recipe_for(data: Path | str, **changes: Any) -> Recipe:
    base: dict[str, Any] = {"data": str(data), "name": "test", "epochs": 2, "batch_size": 16, "warmup_epochs": 0}
    base |= {"lr": 2e-3, "img_size": 16, "augment": Augmentation(2, True), "validation": 24}
    return Recipe(**base | {"adversary": Adversary(steps=2, step_size=4.0)} | changes)


class Small(Model):
    """Quick to compile; its "lengths" are numbers within (0, 1)."""

    scores = "lengths"

    def __init__(self) -> None:
        super().__init__(make_task("small", 3, 3, 16, None, None))
        self.body = ConvBN(3, 8, stride=2)
        self.head = nn.Linear(8, 3)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.body(self.normalize(x)).relu().mean((2, 3))

    def forward_head(self, features: Tensor) -> Tensor:
        return self.head(features).sigmoid()


def one_step(recipe: Recipe, model: Model, epoch: int = 3, at: int = 2, engine: Any = "eager") -> tuple[Step, Loader]:
    images, labels = bars(64, 16, 0)
    data = ImageSet(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels), ("a", "b", "c"), "bars")
    loader = Loader(data, 16, recipe.augment or Augmentation(), seed=0)
    loader.begin(epoch, at)
    return Step(model, loader, recipe, engine), loader


def plain_logits(model: Model, x: Tensor) -> Tensor:
    """ln(l / (1 - l)) for capsule lengths l; logits as they are."""
    scores = model(x)
    return torch.log(scores / (1 - scores)) if model.scores == "lengths" else scores


def attacked_by_hand(
    model: Model, x: Tensor, y: Tensor, start: Tensor, adversary: Adversary, validating: bool = False
) -> Tensor:
    """Image by image, in eval mode, with log and exp instead of PyTorch's losses."""
    model.eval()
    done = []
    for one, label, begin in zip(x, y, start, strict=True):
        clean, now = plain_logits(model, one[None]).detach()[0].softmax(0), begin.clone()
        for _ in range(adversary.steps):
            now.requires_grad_()
            probabilities = plain_logits(model, now[None])[0].softmax(0)
            if validating:
                scores = model(now[None])[0]
                loss = max(scores[k] for k in range(len(scores)) if k != label) - scores[label]
            elif adversary.kind == "pgd":
                loss = -probabilities[label].log()
            else:
                loss = (clean * (clean.log() - probabilities.log())).sum()
            (slope,) = torch.autograd.grad(loss, now)
            now = now.detach() + adversary.step_size / 255 * slope.sign()
            now = torch.minimum(torch.maximum(now, one - adversary.eps / 255), one + adversary.eps / 255).clamp(0, 1)
        done.append(now)
    model.train()
    return torch.stack(done)


def recorded(function: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The same function, and a list of what it returns."""
    results: list[Tensor] = []

    def call(*args: Any) -> Tensor:
        results.append(function(*args))
        return results[-1]

    return call, results


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mspcaps_t", "resnet20"])
def test_a_step_learns_from_the_attack_of_a_plain_loop(name: str, kind: Any) -> None:
    """A loop finds the same images one by one; loss, gradients and statistics are those of a plain step."""
    torch.manual_seed(0)
    adversary = Adversary(kind=kind, steps=3, step_size=3.0, beta=4.0)
    model, twin = (create_model(name, num_classes=3, img_size=16).train() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    step, loader = one_step(recipe_for("bars", model=name, adversary=adversary), model)
    assert isinstance(step.loss, RobustLoss)
    step.loss.attack, attacks = recorded(step.loss.attack)  # type: ignore[assignment]
    loss, gradients = step.gradients()

    x, y = take_batch(loader)
    (attacked,) = attacks
    start = hashed_start(x, step.keys[-1:], 8 / 255)
    by_hand = attacked_by_hand(copy.deepcopy(twin).double(), x.double(), y, start.double(), adversary).float()
    assert (attacked - x).abs().max() <= 8 / 255 + 1e-6 and attacked.min() >= 0 and attacked.max() <= 1
    same = torch.isclose(attacked, by_hand, atol=1e-5).float().mean()
    assert same > (0.98 if kind == "pgd" else 0.9), "except for the signs of gradients that round to zero"
    assert (attacked - start).abs().mean() > 4 / 255

    rows = torch.arange(len(y))
    if kind == "pgd":
        expected = -plain_logits(twin, attacked).softmax(1)[rows, y].log().mean()
    else:
        clean, under = (plain_logits(twin, images).softmax(1) for images in (x, attacked))
        apart = (clean * (clean.log() - under.log())).sum(1).mean()
        expected = -clean[rows, y].log().mean() + 4.0 * apart
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    expected.backward()
    params = dict(twin.named_parameters())
    for group, flat in zip(step.optimizer.groups, gradients, strict=True):
        for name, gradient in group.pieces(flat).items():
            torch.testing.assert_close(gradient, params[name].grad, rtol=1e-3, atol=1e-5)
    for own, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
    assert model.training and all(p.requires_grad for p in model.parameters())


def test_the_start_is_even_and_a_function_of_seed_epoch_and_step() -> None:
    x = torch.full((64, 3, 16, 16), 0.5)
    starts = []
    for epoch, at in ((0, 0), (0, 1), (1, 0), (0, 0)):
        step, _ = one_step(recipe_for("bars"), create_model("resnet20", num_classes=3, img_size=16), epoch, at)
        step.gradients()
        starts.append(hashed_start(x, step.keys[-1:], 0.1))
    assert torch.equal(starts[0], starts[3])
    assert not any(torch.allclose(starts[0], other, atol=0.05) for other in starts[1:3])
    noise = ((starts[0] - 0.5) / 0.1).flatten()
    assert noise.abs().max() <= 1 + 1e-5 and abs(noise.mean()) < 0.02 and abs(noise.square().mean() - 1 / 3) < 0.01
    whole = hashed_start(x, step.keys[-1:], 0.1)
    halves = [hashed_start(part, step.keys[-1:], 0.1, share) for share, part in enumerate(x.chunk(2))]
    assert torch.equal(whole, torch.cat(halves)), "two processes share one start"


@pytest.mark.slow
@pytest.mark.skipif(not compiler_works(), reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", [pytest.param("pgd", marks=pytest.mark.soak), "trades"])
def test_the_compiled_step_is_the_same_step(kind: Any) -> None:
    recipe = recipe_for("bars", adversary=Adversary(kind=kind, steps=2, step_size=4.0), ema=0.5)
    torch.manual_seed(0)
    state, outcomes = Small().state_dict(), []
    for engine in ("eager", "compile"):
        model = Small().train()
        model.load_state_dict(state)
        step, _ = one_step(recipe, model, at=0, engine=engine)
        step.optimizer.lr.fill_(1e-3)
        for _ in range(3):
            step()
        assert step.average is not None
        outcomes.append({"loss": step.loss_sum, **step.average.tensors})
    for name, tensor in outcomes[0].items():
        torch.testing.assert_close(
            tensor, outcomes[1][name], rtol=1e-2, atol=2e-3, msg=lambda why, n=name: f"{n} {why}"
        )


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tiny_npz: Path, tmp_path: Path) -> None:
    """In the middle of an epoch, against TRADES, with an average of the weights."""
    recipe = recipe_for(tiny_npz, adversary=Adversary(kind="trades", steps=2), ema=0.9)
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a", progress=False)
    stop = threading.Event()

    def listener(trainer: Trainer) -> None:
        if (trainer.epoch, trainer.steps_done) == (1, 2):
            stop.set()

    places = {"out": tmp_path / "b", "results": tmp_path / "b"}
    assert Trainer(recipe, CPU, listener=listener, stop=stop, **places).run() is None  # type: ignore[arg-type]
    resumed = train(recipe, device="cpu", progress=False, **places)  # type: ignore[arg-type]
    for file in ("last.safetensors", "best.safetensors"):
        assert (whole.folder / file).read_bytes() == (resumed.folder / file).read_bytes()
    assert whole.run.curve == resumed.run.curve and len(whole.run.curve["validation"]) == 2


@pytest.mark.slow
def test_robust_accuracy_counts_by_hand(tiny_npz: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_npz, validation=20, adversary=Adversary(eps=16.0))
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    validator = trainer.robust_evaluator
    assert isinstance(validator, RobustEvaluator)
    assert [len(images) for images, _ in validator.batches] == [16, 16], "the last batch is filled up"
    data, right = validator.data, 0
    assert isinstance(data, ImageSet)
    model = trainer.model.eval()
    for number, (images, labels) in enumerate(zip(data.images.split(16), data.labels.split(16), strict=True)):
        x = images.float() / 255
        noise = hashed_start(torch.full((20, *x.shape[1:]), 0.5), validator.key, 16 / 255)  # by the image's number
        start = (x + noise[16 * number : 16 * number + len(x)] - 0.5).clamp(0, 1)
        attacked = attacked_by_hand(model, x, labels, start, Adversary(eps=16.0, step_size=4.0, steps=10), True)
        right += int((model.eval()(attacked).argmax(1) == labels).sum())
    assert validator.accuracy() == pytest.approx(100 * right / 20, abs=5.1)


def test_validation_images_are_attacked_from_the_same_starts_in_batches_of_any_size(
    tiny_npz: Path, tmp_path: Path
) -> None:
    """Several processes have smaller ones."""
    recipe = recipe_for(tiny_npz, validation=20, adversary=Adversary())
    validator = Trainer(recipe, CPU, out=tmp_path, results=tmp_path).robust_evaluator

    def starts(batch: int) -> Tensor:
        assert isinstance(validator, RobustEvaluator) and isinstance(validator.data, ImageSet)
        smaller = RobustEvaluator(validator.model, validator.data, CPU, "eager", None, Adversary(), batch)
        attack, found = smaller.attack, list[Tensor]()

        def start(x: Tensor, y: Tensor, key: Tensor, share: Tensor) -> Tensor:
            found.append(attack.start(x, key, 8 / 255, share))
            return x

        smaller.attack = start  # type: ignore[assignment]
        smaller.accuracy()
        return torch.cat(found)[:20]

    assert torch.equal(starts(20), starts(8))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_training_makes_robust(tmp_path: Path, kind: Any) -> None:
    """Faint bars under a strong attack: a plain run fails, one that trained against it succeeds on most."""
    images, labels = bars(256, 16, 0)
    faint = (images * 0.5 + 60).astype(np.uint8)
    np.savez(tmp_path / "faint.npz", x_train=faint, y_train=labels, x_test=faint[:40], y_test=labels[:40])
    base = recipe_for(tmp_path / "faint.npz", epochs=6, validation=64, ema=0.8, augment=Augmentation())
    hard = Adversary(kind=kind, eps=16.0, step_size=8.0, steps=4, beta=4.0)
    robust = train(base.replace(adversary=hard), device="cpu", out=tmp_path, results=tmp_path, progress=False)
    plain = train(base.replace(adversary=None), device="cpu", out=tmp_path, results=tmp_path, progress=False)
    _, validation, _ = load_images(base, CPU)
    measured = [
        RobustEvaluator(frozen_twin(run.model), validation, CPU, "eager", None, hard, 64).accuracy()
        for run in (robust, plain)
    ]
    assert max(robust.run.curve["validation"]) == measured[0]
    assert measured[0] > measured[1] + 15, measured


def test_log_odds_of_lengths() -> None:
    odds = as_logits(torch.tensor([[0.0, 0.5, 0.75, 1.0]], requires_grad=True), "lengths")
    torch.testing.assert_close(odds[0, 1:3], torch.tensor([0.0, np.log(3.0)], dtype=torch.float32))
    assert torch.isfinite(odds).all() and torch.equal(as_logits(odds, "logits"), odds)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"eps": -1.0}, "adversary.eps is -1.0"),
        ({"eps": 300.0}, "adversary.eps is 300.0"),
        ({"eps": 8 / 255}, "adversary.eps is 0.03.*255ths"),
        ({"step_size": float("nan")}, "adversary.step_size is nan"),
        ({"steps": 0}, "adversary.steps is 0"),
        ({"beta": float("inf")}, "adversary.beta is inf"),
        ({"kind": "tardes"}, "did you mean 'trades'"),
        ({"epsilon": 8.0}, "no 'epsilon'"),
    ],
)
def test_bad_adversaries_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(MspcapsError, match=message):
        Recipe(adversary=table, validation=10)  # type: ignore[arg-type]
    with pytest.raises(MspcapsError, match="validation is 0"):
        Recipe(adversary=Adversary())


def test_several_processes_must_share_the_statistics_that_attacks_read(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mspcaps.training.trainer.join_world", lambda device: World(0, 2))
    recipe = recipe_for(tiny_npz, sync_batchnorm=False)
    with pytest.raises(MspcapsError, match="sync_batchnorm"):
        Trainer(recipe, torch.device("cpu"), out=tmp_path, results=tmp_path)


def test_recipes_from_before_adversaries_are_the_same() -> None:
    """A recipe stored before there were adversaries, or before one had all its fields, is still the same."""
    old = {key: value for key, value in Recipe().to_dict().items() if key not in ("adversary", "ema", "validation")}
    assert Recipe().differences(old) == []
    recipe = recipe_for("bars", adversary=Adversary(eps=4.0))
    stored = recipe.to_dict() | {"adversary": {"eps": 4.0}}
    assert recipe.differences(stored) == [] and stored_recipe(stored)["adversary"]["steps"] == 10
    assert "adversary" in recipe.replace(adversary={"eps": 8.0}).differences(stored)


def test_the_robust_recipes_have_one_budget() -> None:
    names = [name for name in list_recipes() if name.startswith("robust/")]
    recipes = [load_recipe(name) for name in names]
    assert {r.model for r in recipes} == {"mspcaps_t", "mspcaps_l", "resnet18"}
    for name, recipe in zip(names, recipes, strict=True):
        assert name == f"robust/{recipe.data}/{recipe.model}" and recipe.name == "robust"
        adversary = recipe.adversary
        assert adversary is not None and (adversary.eps, adversary.step_size, adversary.steps) == (8.0, 2.0, 10)
        assert recipe.ema == 0.999 and recipe.validation == 1000 and not recipe.held_out
    trials = [r for r in load_sweep(recipe_folder() / "sweeps" / "robust.toml") if r.name != "robust"]
    assert all(r.held_out for r in trials), "nothing is chosen on test images"
    assert all(r.adversary and r.adversary.eps == 8.0 for r in trials)
