"""What a CUDA graph records must neither wait for the device nor draw from a generator: checked here on a CPU, where
the same Python runs, operation by operation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mspcaps.bench.variants import Task
from mspcaps.data import Augmentation, ImageSet, facts
from mspcaps.models import create_model, orthcaps
from mspcaps.training.evaluator import Evaluator, make_robust_evaluator
from mspcaps.training.loader import Loader
from mspcaps.training.recipe import Adversary, Recipe
from mspcaps.training.step import Step

CPU = torch.device("cpu")
FAMILIES = (
    "mspcaps_t", "capsnet", "aa_capsnet", "ar_capsnet", "da_capsnet", "deepcaps", "rs_capsnet", "idp_capsnet",
    "efficient_capsnet", "orthcaps_s", "orthcaps_d", "lacaps_t", "resnet20",
)  # fmt: skip
WAITS = {  # the host reads what the device computed, or the shape of the result depends on it
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal", "aten.is_nonzero", "aten._unique2",
    "aten.repeat_interleave", "aten.lift_fresh",  # the last: a Python constant that would be copied to the device
}  # fmt: skip
DRAWS = ("rand", "bernoulli", "uniform", "normal_", "dropout", "multinomial", "exponential")


class Recorded(TorchDispatchMode):
    """Refuses operations that a graph cannot record."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        by_mask = name in ("aten.index", "aten.index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        drawn = any(word in name for word in DRAWS)
        assert not (name in WAITS or by_mask or drawn), f"{name} cannot be recorded"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only images on a CPU are looked at."""
    monkeypatch.setattr("mspcaps.models.layers.check_range", lambda x: None)


def data(side: int) -> ImageSet:
    return Task(2, img_size=side, images=6).data()


def test_the_check_refuses_operations_that_wait() -> None:
    x = torch.ones(3)
    for work in (lambda: x.sum().item(), lambda: x[x > 0], lambda: torch.rand(2), lambda: torch.tensor([1.0]) + x):
        with pytest.raises(AssertionError), Recorded():
            work()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_steps_and_evaluations_can_be_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of a GPU; health is part of the evaluation. The first calls, which may allocate, are warm-up."""
    monkeypatch.setattr(orthcaps, "BLOCKS", 1)  # instead of seven equal ones
    images = data(24)
    torch.manual_seed(0)
    model = create_model(name, img_size=24).train()
    step = Step(
        model, Loader(images, 2, Augmentation(crop=2, flip=True), 0), Recipe(batch_size=2, precision="bf16"), "eager"
    )
    step.loader.begin(0)
    evaluator = Evaluator(step.evaluated, images, CPU, "eager", step.autocast)
    step()
    evaluator.count_all()
    with Recorded():
        step()
        evaluator.count_all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pgd", "trades"])
@pytest.mark.parametrize("name", ["mspcaps_t", "resnet20"])
def test_adversarial_steps_can_be_recorded(name: str, kind: Any) -> None:
    images = data(16)
    recipe = Recipe(
        batch_size=2, precision="bf16", adversary=Adversary(kind=kind, steps=2), validation=1, ema=0.9, clip_grad=1.0
    )
    torch.manual_seed(0)
    step = Step(
        create_model(name, img_size=16).train(), Loader(images, 2, Augmentation(rotate=15.0), 0), recipe, "eager"
    )
    step.loader.begin(0)
    evaluator = make_robust_evaluator(step, images, recipe, CPU, "eager")
    assert evaluator is not None
    step()
    evaluator.count_all()
    with Recorded():
        step()
        evaluator.count_all()


def test_everything_that_a_recipe_may_add_can_be_recorded() -> None:
    augment = Augmentation(2, True, 5.0, alternate_flip=True, cutout=4, colour=0.2, sharpness=0.2, mixup=0.2)
    recipe = Recipe(
        batch_size=2, precision="bf16", augment=augment, muon_lr=0.01, decay_vectors=False, clip_grad=1.0, ema=0.9,
        label_smoothing=0.1, teacher="mspcaps_t.cifar10",
    )  # fmt: skip
    images = replace(data(32), classes=facts("cifar10").classes)
    torch.manual_seed(0)
    step = Step(create_model("resnet20").train(), Loader(images, 2, augment, 0), recipe, "eager")
    step.loader.begin(0)
    step()
    with Recorded():
        step()
