"""Routing health against plain loops, on models that are healthy, collapsed, or in training."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mspcaps.capsules import squash
from mspcaps.cli.evaluation import show_health
from mspcaps.data import ImageSet, load_dataset
from mspcaps.evaluation import attack, evaluate, evaluate_shifts, predict
from mspcaps.evaluation.accuracy import limit_batch
from mspcaps.evaluation.health import (
    BlockHealth,
    HealthMeter,
    as_curves,
    chosen,
    in_chunks,
    mark_winners,
    mean_couplings,
    measure_health,
    relative_entropy,
)
from mspcaps.models import create_model, load_model, summarize
from mspcaps.models.mspcaps import MSPCaps
from mspcaps.training import Recipe, Trainer, train
from mspcaps.training.checkpoint import CHECKPOINT, read_checkpoint, save_checkpoint
from mspcaps.training.evaluator import Evaluator
from mspcaps.training.result import Epoch

CPU = torch.device("cpu")
FAMILIES = ["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_mean", "mspcaps_t_self", "mspcaps_t_dr", "mspcaps_t_scale16"]


def healthy(name: str = "mspcaps_t", size: int = 32) -> MSPCaps:
    """Small votes agree little: the couplings are nearly uniform."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=3, img_size=size).eval()
    assert isinstance(model, MSPCaps)
    with torch.no_grad():
        for p in model.routing.parameters():
            p *= 0.2
    return model


def collapsed() -> MSPCaps:
    """One coarse capsule of the last block shouts, and so do the fine ones below it: they share its weights."""
    model = healthy()
    with torch.no_grad():
        model.routing[1].w2[0] *= 100
    return model


@pytest.fixture(scope="module")
def images() -> ImageSet:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (12, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(12) % 3, ("a", "b", "c"), "noise")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_measures_of_couplings_against_loops(axis: int) -> None:
    couplings = (3 * torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(axis))).softmax(axis)
    rows = couplings.movedim(axis, -1).reshape(-1, couplings.shape[axis]).tolist()
    n = len(rows[0])
    entropies = [-sum(c * math.log(c) for c in row) / math.log(n) for row in rows]
    means = [sum(row[i] for row in rows) / len(rows) for i in range(n)]
    winners = {max(range(n), key=lambda i: row[i]) for row in rows}
    assert relative_entropy(couplings, axis).item() == pytest.approx(sum(entropies) / len(rows), rel=1e-5)
    assert mean_couplings(couplings, axis).tolist() == pytest.approx(means, rel=1e-5)
    won = torch.zeros(n)
    mark_winners(won, couplings, axis)
    assert {i for i in range(n) if won[i]} == winners and set(won.tolist()) <= {0.0, 1.0}


def test_the_ends_of_the_scale() -> None:
    assert relative_entropy(torch.full((4, 2, 3), 0.25), 0).item() == pytest.approx(1)
    assert relative_entropy(torch.eye(4), 0).item() == 0
    assert relative_entropy(torch.ones(1, 5), 0).item() == 1, "one capsule has no choice"
    sound = BlockHealth("routing.0", 4, entropy=0.85, top=2.0, starved=0.5, swapped={})
    assert not sound.collapsed and not sound.why()
    assert replace(sound, entropy=0.84).collapsed and "0.84 of uniform" in replace(sound, entropy=0.84).why()
    assert replace(sound, top=2.1).collapsed and "one of its 4 capsules has 2.1 times" in replace(sound, top=2.1).why()


@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_what_the_forward_pass_does(name: str, images: ImageSet) -> None:
    model, x = healthy(name), images.images[:4].float() / 255
    with torch.no_grad():
        states, outputs = model.routing_state(x), model.forward_capsules(x)
    assert [state.name for state in states] == [f"routing.{i}" for i in range(len(model.routing))]
    for state in states:
        assert state.agreements.shape == state.couplings.shape
        assert torch.allclose(state.couplings.sum(state.axis), torch.ones(()))
    last = states[-1]
    again = squash((last.couplings.unsqueeze(-1) * last.votes[-1]).sum(0))
    assert torch.allclose(again, outputs, atol=1e-6)
    assert not any(block._forward_hooks for block in model.routing)


@pytest.mark.parametrize(("batch_size", "most"), [(1, 2), (5, 5), (500, 12)])
def test_no_more_images_at_a_time_than_evaluate_is_given(batch_size: int, most: int, images: ImageSet) -> None:
    model, sizes = healthy(), []
    with model.backbone.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0]))):
        evaluate(model, images, batch_size)
    assert max(sizes) == most


@pytest.mark.slow
def test_large_images_come_in_smaller_batches(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = healthy(), []
    monkeypatch.setattr("mspcaps.evaluation.accuracy.MAX_BYTES", {"cpu": 3 * summarize(model).memory_bytes_per_image})
    with model.backbone.register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[0])):
        whole = evaluate(model, images)
        assert max(sizes) == 3
        sizes.clear()
        answers = predict(model, images.images)
        evaluate_shifts(model, images, ["contrast"])
        attack(model, images, 0.01, "fgsm", check=False)
        accuracy = Evaluator(model, images, CPU, "eager", None).accuracy()
        assert max(sizes) == 3 and len(answers) == 12 and accuracy == pytest.approx(whole.accuracy)
    monkeypatch.undo()
    assert torch.allclose(whole.scores, evaluate(model, images).scores, atol=1e-6)


def test_batches_of_a_model_that_nobody_registered_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = healthy()
    monkeypatch.setattr("mspcaps.evaluation.accuracy.MAX_BYTES", {"cpu": 0})
    assert limit_batch(model, 500) == 1
    model.config["name"] = "unregistered"
    assert limit_batch(model, 500) == 500


def test_a_model_without_couplings_has_no_health(images: ImageSet) -> None:
    for name in ("mspcaps_t_linear", "mspcaps_t_concat", "resnet20"):
        model = create_model(name, num_classes=3)
        assert model.routing_state(images.images / 255) == []
        assert measure_health(model, images.images, images.labels) == ()


def test_a_collapsed_model_is_reported_and_a_healthy_one_is_not(
    images: ImageSet, capsys: pytest.CaptureFixture[str]
) -> None:
    sound, lost = evaluate(healthy(), images).health, evaluate(collapsed(), images).health
    assert [block.collapsed for block in sound] == [False, False]
    assert [block.collapsed for block in lost] == [False, True]
    assert lost[1].top > 3 and lost[1].starved > 0 and lost[1].capsules == 4
    show_health(sound)
    assert "collapsed" not in capsys.readouterr().out
    show_health(lost)
    printed = capsys.readouterr().out
    assert "routing.1 has collapsed: the entropy of its couplings is " in printed and "routing.0 has" not in printed


def test_figures_are_those_of_all_images_whatever_the_chunks(images: ImageSet) -> None:
    model, x = healthy(), images.images.float() / 255
    meter = HealthMeter(model)
    with torch.no_grad():
        for _ in range(2):  # the second pass starts from zero
            meter.zero()
            for part, labels in ((x[:5], images.labels[:5]), (x[5:], images.labels[5:])):
                meter.add(part, labels)
        states = model.routing_state(x)
    for block, state in zip(meter.read(), states, strict=True):
        c = state.couplings
        assert block.entropy == pytest.approx(relative_entropy(c, 0).item(), rel=1e-5)
        assert block.top == pytest.approx(len(c) * mean_couplings(c, 0).max().item(), rel=1e-5)
        assert block.starved == pytest.approx(1 - len(set(c.argmax(0).flatten().tolist())) / len(c), abs=1e-6)


@torch.no_grad()
def test_swapped_against_routing_by_hand() -> None:
    model, data = load_model("mspcaps_t.fashionmnist").eval(), load_dataset("fashionmnist_sample", "test", 32)
    assert isinstance(model, MSPCaps)
    x = data.images[:40].float() / 255
    labels = model(x).argmax(1)  # every answer is right: whatever changes is a loss
    meter = HealthMeter(model)
    meter.add(x, labels)
    u1, u2, u3 = model.forward_features(x)
    first, second = model.routing

    def lost(middle: Tensor, coarse: Tensor) -> float:
        return 100 * (second(middle, coarse).norm(dim=-1).argmax(1) != labels).double().mean().item()

    def other(u: Tensor) -> Tensor:
        return torch.cat([u[-1:], u[:-1]])

    found = meter.read()
    assert found[0].swapped == pytest.approx(
        {"fine": lost(first(other(u1), u2), u3), "coarse": lost(first(u1, other(u2)), u3)}, abs=1e-4
    )
    assert found[1].swapped == pytest.approx(
        {"fine": lost(other(first(u1, u2)), u3), "coarse": lost(first(u1, u2), other(u3))}, abs=1e-4
    )
    assert min(found[1].swapped.values()) > 0
    assert not any(block._forward_pre_hooks for block in model.routing)


def test_images_are_mixed_and_always_the_same() -> None:
    some = chosen(3000, CPU)
    assert len(some) == 500 == len(set(some.tolist())) and torch.equal(some, chosen(3000, CPU))
    assert some.tolist() != sorted(some.tolist()) and len(chosen(3000, torch.device("cuda"))) == 2000
    assert sorted(chosen(7, CPU).tolist()) == list(range(7))
    for images, batch, sizes in ((251, 1000, [126, 125]), (3, 2, [3]), (5, 1, [3, 2]), (1, 8, [1])):
        assert [len(x) for x, _ in in_chunks(torch.zeros(images, 1), torch.zeros(images), batch)] == sizes


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (24, 16, 16, 3)).astype(np.uint8), np.arange(24) % 3
    np.savez(tmp_path / "noise.npz", x_train=pixels, y_train=labels, x_test=pixels[:9], y_test=labels[:9])
    settings: dict[str, Any] = {"model": "mspcaps_t", "data": str(tmp_path / "noise.npz"), "name": "test"}
    return Recipe(**settings, epochs=2, batch_size=12, warmup_epochs=0, img_size=16)


@pytest.mark.slow
def test_a_run_keeps_its_health_also_when_it_is_resumed(recipe: Recipe, tmp_path: Path) -> None:
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a")
    stopped = Trainer(recipe, CPU, out=tmp_path / "b", results=tmp_path / "b")
    assert stopped.run(deadline=0.0) is None
    resumed = train(recipe, device="cpu", out=tmp_path / "b", results=tmp_path / "b")
    assert resumed.history == whole.history and resumed.run.curve == whole.run.curve
    health = json.loads(json.dumps(whole.run.curve))["health"]
    assert list(health) == ["routing.0", "routing.1"]
    first = health["routing.0"]
    assert first["capsules"] == 4 and {len(first[key]) for key in ("entropy", "top", "starved")} == {2}
    assert {key: len(values) for key, values in first["swapped"].items()} == {"fine": 2, "coarse": 2}
    block = whole.history[-1].health[0]
    assert first["entropy"][-1] == float(f"{block.entropy:.4g}")


def test_a_checkpoint_from_before_there_was_health_goes_on(recipe: Recipe, tmp_path: Path) -> None:
    stopped = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    assert stopped.run(deadline=0.0) is None
    progress, tensors = read_checkpoint(path := stopped.folder / CHECKPOINT)
    for row in progress["history"]:
        del row["health"]
    save_checkpoint(path, tensors, progress)
    curve = train(recipe, device="cpu", out=tmp_path, results=tmp_path).run.curve["health"]["routing.1"]
    assert curve["entropy"][0] is None and curve["swapped"]["fine"][0] is None and curve["entropy"][1] > 0


def test_a_run_without_couplings_has_no_health(recipe: Recipe, tmp_path: Path) -> None:
    result = train(replace(recipe, model="mspcaps_t_linear", epochs=1), device="cpu", out=tmp_path, results=tmp_path)
    assert "health" not in result.run.curve and as_curves([row.health for row in result.history]) == {}


def test_training_says_once_that_a_block_collapsed(recipe: Recipe, tmp_path: Path) -> None:
    said: list[str] = []
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path, log=said.append)
    sound = BlockHealth("routing.0", 16, entropy=0.9, top=1.5, starved=0.0, swapped={})
    lost = BlockHealth("routing.1", 4, entropy=0.5, top=3.2, starved=0.75, swapped={})
    for epoch in range(2):
        trainer.epoch = epoch
        trainer.warn_of_collapse((sound, lost))
        trainer.history.append(Epoch(epoch + 1, 0.1, 0.1, 50.0, (sound, lost)))
    (line,) = said
    assert all(word in line for word in ("routing.1", "epoch 1", "0.50", "0.85", "3.2"))


def test_couplings_that_leak_are_uniform_if_their_shares_are() -> None:
    """One iteration of leaky routing: each of two classes gets a third, and so does none of them."""
    model = create_model("capsnet_cifar", num_classes=2, in_chans=1, img_size=4, iterations=1)
    (block,) = measure_health(model, torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64))
    assert (block.entropy, block.top) == pytest.approx((1, 1), abs=1e-5) and not block.collapsed
