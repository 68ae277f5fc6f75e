"""Smoothed labels and teachers against plain NumPy; everything that a recipe can turn on, together."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_makers import bars

from mspcaps.data import Augmentation, ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models import CapsuleModel, Model, create_model, save_weights
from mspcaps.models.layers import ConvBN
from mspcaps.models.model import make_task
from mspcaps.training import Recipe, Trainer, train
from mspcaps.training.device import compiler_works
from mspcaps.training.loader import Loader, take_batch
from mspcaps.training.objective import batch_loss, check_soft_targets, load_teacher
from mspcaps.training.recipe import Adversary
from mspcaps.training.step import Step

CPU = torch.device("cpu")
CLASSES = ("0", "1", "2")
LOOKS = Augmentation(2, True, 10.0, alternate_flip=True, cutout=5, colour=0.3, sharpness=0.5, mixup=0.4)


class Small(Model):
    """Quick to compile; its scores are logits, or "lengths" within (0, 1)."""

    def __init__(self, kind: Any = "logits") -> None:
        super().__init__(make_task("resnet20", 3, 3, 16, None, None))
        self.scores = kind  # type: ignore[misc]
        self.config = self.config | {"name": "small"}
        self.body, self.more, self.head = ConvBN(3, 8, stride=2), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.more(self.body(self.normalize(x)).relu()).relu().mean((2, 3))

    def forward_head(self, features: Tensor) -> Tensor:
        return self.head(features).sigmoid() if self.scores == "lengths" else self.head(features)

    def get_classifier(self) -> nn.Module:
        return self.head


def make_loader(augment: Augmentation = LOOKS) -> Loader:
    images, labels = bars(64, 16, 0)
    data = ImageSet(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels), CLASSES, "bars")
    loader = Loader(data, 16, augment, seed=0)
    loader.begin(3, 2)
    return loader


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def teacher_file(folder: Path, model: str = "resnet20", classes: tuple[str, ...] = CLASSES, **task: Any) -> Path:
    torch.manual_seed(5)
    made = create_model(model, **{"num_classes": len(classes), "img_size": 16} | task)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_(0, 0.1)  # statistics that differ from those of a batch
    save_weights(folder / "teacher.safetensors", made, classes=list(classes))
    return folder / "teacher.safetensors"


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_smoothed_labels_spread_their_share_over_all_classes(mixup: float) -> None:
    loader = make_loader(Augmentation(2, mixup=mixup))
    x, y = take_batch(loader)
    hard = y.double().numpy() if mixup else np.eye(3)[y]
    soft = 0.8 * hard + 0.2 / 3
    for name in ("resnet20", "mspcaps_t_linear_margin", "mspcaps_t_scale16"):
        model = create_model(name, num_classes=3, img_size=16).eval()
        scores = model(x).detach().double().numpy()
        if model.scores == "logits":
            want = -(soft * log_softmax(scores)).sum(1).mean()
        else:
            pull, push = np.maximum(0.9 - scores, 0) ** 2, np.maximum(scores - 0.1, 0) ** 2
            want = (soft * pull + 0.5 * (1 - soft) * push).sum(1).mean()
        assert batch_loss(model, loader, 0.2).item() == pytest.approx(want, rel=1e-5), name


@pytest.mark.parametrize("name", ["resnet20", "mspcaps_t_scale16"])
def test_it_is_the_expected_loss_of_redrawn_labels(name: str) -> None:
    """For cross-entropy and for the margin loss: one label in ten is drawn from all classes."""
    loader, model = make_loader(Augmentation()), create_model(name, num_classes=3, img_size=16).eval()
    x, y = take_batch(loader)
    of_class = [model.criterion(model(x), torch.full_like(y, k)).item() for k in range(3)]
    want = 0.9 * model.criterion(model(x), y).item() + 0.1 * sum(of_class) / 3
    assert batch_loss(model, loader, 0.1).item() == pytest.approx(want, rel=1e-5)


def test_a_decoder_reconstructs_the_labelled_class() -> None:
    model = create_model("mspcaps_t", num_classes=3, img_size=16, decoder=True).eval()
    loader = make_loader(Augmentation())
    x, y = take_batch(loader)
    assert isinstance(model, CapsuleModel)
    v = model.forward_capsules(x)
    error = (model.reconstruct(v, y) - x).square().flatten(1).sum(1).mean()
    soft = 0.7 * torch.eye(3)[y] + 0.1
    want = model.criterion(v.norm(dim=2), soft) + model.reconstruction * error
    assert batch_loss(model, loader, 0.3).item() == pytest.approx(want.item(), rel=1e-4)


@pytest.mark.parametrize(("recipe", "augment"), [({"label_smoothing": 0.1}, {}), ({}, {"mixup": 0.2})])
def test_a_loss_that_takes_class_numbers_only_is_refused(recipe: dict[str, float], augment: dict[str, float]) -> None:
    model, loader = Small(), make_loader(Augmentation(**augment))  # type: ignore[arg-type]
    model.criterion = lambda scores, y: nn.functional.nll_loss(scores.log_softmax(1), y)  # type: ignore[method-assign]
    Step(model, make_loader(Augmentation()), Recipe(), "eager")
    with pytest.raises(MspcapsError, match=r"(label_smoothing is 0\.1|augment\.mixup is 0\.2).* soft targets"):
        Step(model, loader, Recipe(**recipe), "eager")  # type: ignore[arg-type]


def test_a_loss_with_weights_on_the_device_takes_soft_targets() -> None:
    model, loader, weights = Small(), make_loader(Augmentation(mixup=0.2)), torch.ones(3, device="meta")
    loader.images = loader.images.to("meta")
    model.criterion = lambda scores, y: (weights * scores * y).sum()  # type: ignore[method-assign]
    check_soft_targets(Recipe(label_smoothing=0.1), model, loader)


@pytest.mark.parametrize("student", ["logits", "lengths"])
@pytest.mark.parametrize("teacher", ["logits", "lengths"])
def test_a_teacher_adds_the_divergence_from_its_answers(student: str, teacher: str) -> None:
    torch.manual_seed(1)
    model, other, loader = Small(student).train(), Small(teacher).eval(), make_loader()
    x, y = take_batch(loader)

    def softened(one: Model) -> np.ndarray:
        scores = one(x).detach().double().numpy()
        return log_softmax((np.log(scores / (1 - scores)) if one.scores == "lengths" else scores) / 2.5)

    p, q, scores = softened(other), softened(model), model(x)
    apart = (np.exp(p) * (p - q)).sum(1).mean()
    want = 0.7 * model.criterion(scores, y).item() + 0.3 * 2.5**2 * apart
    assert batch_loss(model, loader, 0.0, other, 0.3, 2.5).item() == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
def test_a_teacher_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In eval mode, without gradients, its statistics unmoved; the student comes to answer as it does."""
    recipe = Recipe(teacher=str(teacher_file(tmp_path)), teacher_weight=1.0, lr=5e-3)
    torch.manual_seed(2)
    model = create_model("resnet20", num_classes=3, img_size=16).train()
    loader = make_loader(Augmentation(2, True))
    teacher = load_teacher(recipe, model, loader.classes)
    assert teacher is not None
    monkeypatch.setattr("mspcaps.training.objective.load_teacher", lambda *_: teacher)
    step = Step(model, loader, recipe, "eager")
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    step.optimizer.lr.fill_(5e-3)
    losses = []
    for epoch in range(8):
        loader.begin(epoch)
        step.loss_sum.zero_()
        for _ in range(loader.steps):
            step()
        losses.append(step.loss_sum.item())
    assert losses[-1] < 0.3 * losses[0], losses
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_teachers_of_other_images_or_classes_are_refused(tmp_path: Path) -> None:
    model = create_model("resnet20", num_classes=3, img_size=16)
    assert load_teacher(Recipe(), model, CLASSES) is None

    def refused(path: Path | str, match: str) -> None:
        with pytest.raises(MspcapsError, match=match):
            load_teacher(Recipe(teacher=str(path)), model, CLASSES)

    refused(teacher_file(tmp_path, classes=("1", "0", "2")), "1, 0, 2")
    refused(teacher_file(tmp_path, classes=("0", "1")), "0, 1")
    refused(teacher_file(tmp_path, img_size=32), "3 x 32 x 32")
    refused(teacher_file(tmp_path, in_chans=1), "1 x 16 x 16")
    refused(tmp_path / "none.safetensors", "there is no weights file")
    refused("mspcaps_t.cifar", "mspcaps_t")
    with pytest.raises(MspcapsError, match="teacher"):
        Recipe(teacher="mspcaps_l.cifar10", adversary=Adversary(), validation=10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label_smoothing", 1.0), ("label_smoothing", -0.1), ("teacher_weight", 0.0), ("teacher_weight", 1.5),
        ("temperature", 0.0),
    ],
)  # fmt: skip
def test_bad_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(MspcapsError, match=f"{field} is {value}"):
        Recipe(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["teacher_weight", "temperature"])
def test_settings_of_a_teacher_need_one(field: str) -> None:
    with pytest.raises(MspcapsError, match=rf"{field} is 0\.7"):
        Recipe(**{field: 0.7})  # type: ignore[arg-type]
    assert getattr(Recipe(**{field: 0.7, "teacher": "mspcaps_l.cifar10"}), field) == 0.7  # type: ignore[arg-type]


def everything(data: Path | str, teacher: Path | str, **changes: Any) -> Recipe:
    base: dict[str, Any] = {"data": str(data), "name": "test", "model": "mspcaps_t_scale16", "epochs": 3}
    base |= {"batch_size": 16, "lr": 2e-3, "img_size": 16, "augment": LOOKS, "ema": 0.9, "decay_vectors": False}
    base |= {"muon_lr": 0.02, "label_smoothing": 0.1, "teacher": str(teacher), "validation": 16}
    return Recipe(**base | changes)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "nesterov": True, "balance": True}], ids=["adamw", "sgd"])
def test_a_run_with_everything_resumes_to_the_same_bits(
    tiny_npz: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """In the middle of an epoch; the teacher must still be the same, then and when the run is done."""
    teacher = teacher_file(tmp_path)
    recipe = everything(tiny_npz, teacher, **changes)
    whole = train(recipe, device="cpu", out=tmp_path / "a", results=tmp_path / "a", progress=False)
    stop, places = threading.Event(), {"out": tmp_path / "b", "results": tmp_path / "b"}

    def listener(trainer: Trainer) -> None:
        if (trainer.epoch, trainer.steps_done) == (1, 2):
            stop.set()

    assert Trainer(recipe, CPU, listener=listener, stop=stop, **places).run() is None  # type: ignore[arg-type]
    content = teacher.read_bytes()
    teacher_file(tmp_path, std=(0.2, 0.2, 0.2))
    with pytest.raises(MspcapsError, match=r"the teacher .* had other weights"):
        Trainer(recipe, CPU, **places).run()  # type: ignore[arg-type]
    teacher.write_bytes(content)
    resumed = train(recipe, device="cpu", progress=False, **places)  # type: ignore[arg-type]
    for file in ("last.safetensors", "best.safetensors"):
        assert (whole.folder / file).read_bytes() == (resumed.folder / file).read_bytes()
    assert whole.run.curve == resumed.run.curve and whole.run.recipe["label_smoothing"] == 0.1
    assert whole.run.teacher_sha256 and whole.run.recipe["augment"]["mixup"] == 0.4
    again = train(recipe, device="cpu", progress=False, **places)  # type: ignore[arg-type]
    assert again.run == resumed.run
    teacher_file(tmp_path, std=(0.2, 0.2, 0.2))
    with pytest.raises(MspcapsError, match=r"the teacher .* had other weights"):
        train(recipe, device="cpu", progress=False, **places)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(not compiler_works(), reason="needs a C++ compiler")
def test_the_compiled_step_is_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    augment = replace(LOOKS, rotate=0.0)  # rotation takes a minute to compile
    recipe = everything("bars", "", augment=augment)
    torch.manual_seed(0)
    teacher = Small().eval().requires_grad_(False)
    monkeypatch.setattr("mspcaps.training.objective.load_teacher", lambda *_: teacher)
    state, outcomes = Small("lengths").state_dict(), []
    for engine in ("eager", "compile"):
        model = Small("lengths").train()
        model.load_state_dict(state)
        step: Step = Step(model, make_loader(augment), recipe, engine)  # type: ignore[arg-type]
        step.loader.begin(0)
        step.optimizer.lr.fill_(1e-3)
        for _ in range(4):
            step()
        assert step.average is not None
        outcomes.append({"loss": step.loss_sum, **step.average.tensors, **step.optimizer.tensors()})
    for name, tensor in outcomes[0].items():
        torch.testing.assert_close(
            tensor, outcomes[1][name], rtol=1e-3, atol=1e-4, msg=lambda why, n=name: f"{n} {why}"
        )


@pytest.mark.parametrize("kind", ["pgd", "trades"])
def test_an_adversary_takes_mixed_and_smoothed_labels(tiny_npz: Path, tmp_path: Path, kind: Any) -> None:
    adversary = Adversary(kind=kind, steps=1)
    recipe = everything(tiny_npz, "", adversary=adversary)
    trainer = Trainer(recipe, CPU, out=tmp_path, results=tmp_path)
    trainer.loader.begin(0)
    plain = trainer.step.loss(trainer.model, trainer.loader)
    trainer.step.loss.smoothing = 0.0  # type: ignore[attr-defined]
    assert torch.isfinite(plain) and plain.item() != trainer.step.loss(trainer.model, trainer.loader).item()
