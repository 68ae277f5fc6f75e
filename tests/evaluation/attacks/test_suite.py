"""`mspcaps.attack`: what it counts, what it keeps, what it warns of."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_makers import CLASSES, EPS, SHAPE, Masked, images_for, small_net
from torch import Tensor, nn

import mspcaps
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks import Trial, bim, suite
from mspcaps.evaluation.attacks.common import Draws
from mspcaps.evaluation.attacks.diagnostics import diagnose
from mspcaps.evaluation.attacks.suite import Target
from mspcaps.evaluation.robustness import (
    Curve,
    Point,
    Robustness,
    format_eps,
    list_robustness,
    parse_eps,
    read_robustness,
    result_path,
    write_robustness,
)

MODEL = small_net()
X, Y = images_for(MODEL, 60)


def names(found: Robustness) -> set[str]:
    return {caution.check for caution in found.cautions}


@pytest.mark.slow
def test_what_is_counted():
    found = mspcaps.attack(MODEL, (X, Y), [0.02, EPS], ["bim", "square-100"], batch_size=7)
    assert found.n == 60 and found.clean_accuracy == pytest.approx(100 * 59 / 60) and not found.clean[-1]
    for eps in (0.02, EPS):
        with torch.no_grad():
            right = MODEL(bim(MODEL, X, Y, eps)).argmax(1) == Y
        point = found.curves[0].at(eps)
        assert point is not None and point.survived.tolist() == right.tolist()
        other = found.curves[1].at(eps)
        assert other is not None
        assert found.worst(eps) == pytest.approx(100 * np.mean(point.survived & other.survived))
    assert found.curves[0].zero_gradients == 0 and found.curves[1].zero_gradients is None
    heads, rows = found.table()
    assert len(rows) == 3 and all(len(row) == len(heads) == 4 for row in rows)
    again = mspcaps.attack(MODEL, (X, Y), [0.02, EPS], ["bim", "square-100"], batch_size=60, check=False)
    assert all(np.array_equal(a.survived, b.survived) for a, b in zip(*map(points, (found, again)), strict=True))
    few = mspcaps.attack(MODEL, (X, Y), EPS, "square-100", images=20, check=False)
    assert few.curves[0].points[0].survived.tolist() == found.curves[1].points[1].survived[:20].tolist()


def test_the_checks_take_no_more_images_at_a_time_than_the_attacks():
    sizes = []
    with MODEL.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0]))):
        mspcaps.attack(MODEL, (X, Y), EPS, "bim", batch_size=7)
    assert max(sizes) == 7


def test_some_images_of_a_data_set_are_of_all_classes():
    """A folder lists class after class: the first 20 of 60 images would be of one class."""
    labels = torch.arange(60) // 12  # five classes, one after the other
    data = ImageSet((255 * X).round().to(torch.uint8), labels, tuple(map(str, range(CLASSES))), "sorted")
    found = mspcaps.attack(MODEL, data, EPS, "fgsm", images=20, check=False)
    part = data.split(20)[1]
    with torch.no_grad():
        right = MODEL(part.images.double() / 255).argmax(1) == part.labels
    assert found.n == 20 and len(part.labels.unique()) == CLASSES
    assert found.clean.tolist() == right.tolist()


def points(found: Robustness) -> list[Point]:
    return [point for curve in found.curves for point in curve.points]


def test_a_healthy_model_gets_no_warning():
    found = mspcaps.attack(MODEL, (X, Y), [0.01, 0.02, EPS], ["fgsm", "pgd", "apgd-40", "square-100"])
    assert found.cautions == ()


def test_masked_gradients_are_noticed():
    found = mspcaps.attack(
        Masked(MODEL), (X, Y), [0.05, EPS], ["fgsm", "bim", "square-200"], surrogate=MODEL, batch_size=60
    )
    assert found.curves[0].zero_gradients == 1
    assert {"zero gradients", "white beats black", "white beats transfer", "large eps"} <= names(found)


class Undefined(nn.Module):
    """The same scores, with a gradient that is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MODEL

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + (0 * x.sum((1, 2, 3))[:, None]).sqrt()


def test_gradients_that_are_not_a_number_are_noticed():
    found = mspcaps.attack(Undefined(), (X, Y), EPS, "pgd-2")
    assert found.curves[0].zero_gradients == 1 and "zero gradients" in names(found)


class Random(nn.Module):
    """Adds noise of its own to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.generator = MODEL, torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.inner(x)
        return scores + 0.05 * torch.randn(scores.shape, generator=self.generator)


def test_a_model_that_answers_at_random_is_noticed():
    assert "eps 0" in names(mspcaps.attack(Random(), (X, Y), EPS, "fgsm"))


def test_too_few_steps_are_noticed():
    winding = small_net()
    with torch.no_grad():
        winding[0].weight.mul_(20)
    few, more = (mspcaps.attack(winding, images_for(winding, 60), 0.02, text) for text in ("pgd-1", "pgd-10"))
    assert names(few) == {"more steps help"} and names(more) == set()


def curve(attack: str, *accuracies: float, objective: str = "cw") -> Curve:
    made = [Point((i + 1) / 255, np.arange(100) < accuracy) for i, accuracy in enumerate(accuracies)]
    return Curve(attack, objective, 1, 1, 0.0, tuple(made))


@pytest.mark.parametrize(
    ("curves", "check"),
    [
        ([curve("fgsm", 50, 60)], {"falls with eps"}),
        ([curve("fgsm", 50, 51)], set()),
        ([curve("fgsm", 40), curve("bim", 50)], {"iterated beats single"}),
        ([curve("fgsm", 40), curve("bim", 50, objective="dlr")], set()),
        ([curve("pgd", 50), curve("square", 40)], {"white beats black"}),
        ([curve("pgd", 40), curve("square", 50)], set()),
    ],
)
def test_the_checks_that_need_no_model(curves, check):
    nothing = Target(MODEL, X[:0], Y[:0], np.zeros(0, dtype=bool), 1, 0)
    assert {caution.check for caution in diagnose(nothing, [], curves)} == check


def test_the_file_keeps_everything_and_takes_more(tmp_path: Path):
    data = mspcaps.load_dataset("fashionmnist_sample", "test", 32)
    first = mspcaps.attack("mspcaps_t.fashionmnist", data, [2 / 255], "fgsm", images=12, check=False)
    path = result_path(tmp_path, first, 12)
    assert path.name == "attack-mspcaps_t.fashionmnist-fashionmnist_sample-12.json"
    write_robustness(path, first, {"device": "here"})
    second = mspcaps.attack("mspcaps_t.fashionmnist", data, [4 / 255], ["fgsm", "bim-2"], images=12, check=False)
    both = write_robustness(path, second)
    (kept,) = list_robustness(tmp_path)
    assert kept.weights_sha256 == mspcaps.models.read_card("mspcaps_t.fashionmnist").sha256
    assert [(c.attack, [round(255 * p.eps) for p in c.points]) for c in kept.curves] == [("fgsm", [2, 4]), ("bim", [4])]
    assert [p.survived.tolist() for p in points(kept)] == [p.survived.tolist() for p in points(both)]
    assert points(kept)[0].survived.tolist() == points(first)[0].survived.tolist()
    stored = json.loads(path.read_text())
    assert stored["curves"][0]["points"][0]["accuracy"] == pytest.approx(points(first)[0].accuracy, abs=1e-3)
    assert path.with_suffix(".svg").read_text().startswith("<svg")
    path.write_text("{}")
    with pytest.raises(MspcapsError, match=str(path)):
        read_robustness(path)


def test_budgets_may_be_written_as_on_the_command_line_or_come_from_numpy():
    for eps in ("8/255", np.float32(8 / 255), ["8/255", 8 / 255], 8 / 255):
        (budget,) = mspcaps.attack(MODEL, (X[:2], Y[:2]), eps, "fgsm", check=False).budgets
        assert budget == pytest.approx(8 / 255, abs=1e-8)


def test_results_on_other_images_are_not_added_up(tmp_path: Path):
    """Two folders may have one name and as many pictures, and a model may get all of them right."""
    path = tmp_path / "attack.json"
    for images, attack in ((X[:9], "fgsm"), (X[:9], "bim-2"), (X[9:18], "pgd-2"), (X[9:18].flip(3), "fgsm")):
        labels = MODEL(images).argmax(1)
        kept = write_robustness(path, mspcaps.attack(MODEL, (images, labels), EPS, attack, check=False))
        assert read_robustness(path).images_sha256 == kept.images_sha256
        assert [c.attack for c in kept.curves] == (["fgsm", "bim"] if attack == "bim-2" else [attack.partition("-")[0]])
    old = replace(kept, images_sha256=None)  # a file from before there were fingerprints
    assert old.merged(kept).images_sha256 == kept.images_sha256


def test_results_on_training_images_say_so(tmp_path: Path):
    results = [
        mspcaps.attack("mspcaps_t.fashionmnist", "fashionmnist_sample", EPS, "fgsm", images=2, split=split, check=False)
        for split in ("test", "train")
    ]
    assert [result.dataset for result in results] == ["fashionmnist_sample", "fashionmnist_sample train"]
    assert len({result_path(tmp_path, result, 2) for result in results}) == 2


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"eps": -0.1}, "-0.1"),
        ({"eps": [0.1, math.inf]}, "inf"),
        ({"eps": []}, "eps"),
        ({"eps": "8/x"}, "8/x"),
        ({"attacks": "pgf"}, "'pgf'"),
        ({"attacks": "pgd:hinge"}, "'hinge'"),
        ({"attacks": "pgd:targeted_dlr"}, "targeted_dlr"),
        ({"attacks": "fgsm-3"}, "fgsm-3"),
        ({"attacks": "votes"}, "Sequential"),
        ({"images": 0}, "0"),
        ({"images": 61}, "61"),
        ({"surrogate": MODEL, "check": False}, "surrogate"),
        ({"restarts": 0}, "0"),
        ({"data": (X * 3, Y)}, r"[23]\."),
        ({"data": (X, Y + CLASSES)}, f"{CLASSES} classes"),
        ({"data": None}, "Sequential"),
    ],
)
def test_bad_input(options, value):
    with pytest.raises(MspcapsError, match=value):
        mspcaps.attack(MODEL, **{"data": (X, Y), "eps": EPS, "attacks": "fgsm", **options})


@pytest.mark.parametrize(
    ("classes", "unsuitable"), [(2, "apgd:dlr"), (3, "apgd:targeted_dlr"), (5, "pgd:log_odds"), (5, "votes")]
)
def test_an_attack_that_does_not_suit_the_model_is_refused_before_any_has_begun(classes, unsuitable, monkeypatch):
    """Otherwise the figures of those before it would be lost."""
    begun: list[str] = []
    monkeypatch.setattr(Target, "survivors", lambda self, trial, *_, **__: begun.append(trial.name) or self.clean)
    module = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), classes)).double()
    with pytest.raises(MspcapsError, match=unsuitable.rpartition(":")[2]):
        mspcaps.attack(module, (X, Y % classes), EPS, ["apgd", unsuitable], check=False)
    assert begun == []


@pytest.mark.slow
def test_capsules_are_attacked_through_their_votes_by_default(monkeypatch):
    monkeypatch.setattr(suite, "ATTACKS", ("fgsm",))
    data = mspcaps.load_dataset("fashionmnist_sample", "test", 32)
    for model, wanted in (("mspcaps_t", ["fgsm", "apgd", "votes"]), ("resnet20", ["fgsm"])):
        torch.manual_seed(0)
        network = mspcaps.create_model(model, in_chans=1, pretrained="fashionmnist" if "caps" in model else False)
        before = {key: value.clone() for key, value in network.train().state_dict().items()}
        found = mspcaps.attack(network, data, 8 / 255, images=4, check=False)
        assert network.training and all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
        assert [curve.attack for curve in found.curves] == wanted


def test_how_attacks_and_budgets_are_written():
    assert Trial.parse("pgd-50:cw", 3) == Trial("pgd", "cw", 50, 3)
    assert Trial.parse("fgsm", 3) == Trial("fgsm", "cross_entropy", 1, 1)
    assert Trial.parse("apgd:targeted_dlr").objective == "targeted_dlr"
    assert (parse_eps("8/255"), parse_eps("0.03")) == (8 / 255, 0.03)
    assert (format_eps(8 / 255), format_eps(0.03), format_eps(0.0)) == ("8/255", "0.03", "0")
    for text in ("8/0", "much", "1/2/3"):
        with pytest.raises(MspcapsError, match=text):
            parse_eps(text)


def test_a_module_of_ones_own_on_a_data_set():
    """No contract, no config: images in [0, 1] -> scores."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 10))
    found = mspcaps.attack(module, "fashionmnist_sample", 8 / 255, "fgsm", images=30, check=False)
    assert (found.model, found.dataset, found.n) == ("Sequential", "fashionmnist_sample", 30)


def test_the_shape_of_the_images_is_the_models():
    assert X.shape[1:] == SHAPE
    with pytest.raises(MspcapsError, match="1 x 32 x 32"):
        mspcaps.attack("mspcaps_t.cifar10", mspcaps.load_dataset("fashionmnist_sample", "test"), EPS, "fgsm")


def test_what_fools_a_surrogate_is_tried_after_all_steps():
    """An image that has just crossed the border of the surrogate seldom crosses that of the model."""
    surrogate, eps, generator = small_net(), 0.05, torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.1)
        clean = (MODEL(X).argmax(1) == Y).numpy()
        assert int((surrogate(X).argmax(1) != Y).sum()) > 10, "it errs by itself, too"
    survived = Target(MODEL, X, Y, clean, 7, 3).transferred(surrogate, eps)
    for i in range(len(X)):
        image = (
            X[i : i + 1] + eps * Draws.for_images(3, X[i : i + 1], torch.tensor([i])).within(X[i : i + 1], 0)
        ).clamp(0, 1)
        for _ in range(20):
            image.requires_grad_()
            (slope,) = torch.autograd.grad(nn.functional.cross_entropy(surrogate(image), Y[i : i + 1]), image)
            image = (image.detach() + eps / 8 * slope.sign()).clamp(X[i] - eps, X[i] + eps).clamp(0, 1)
        assert survived[i] == (clean[i] and int(MODEL(image).argmax()) == Y[i])
    assert survived.sum() < 30


def test_files_of_other_weights_are_other_files(tmp_path: Path):
    """Runs of several models have folders of one name, and the name of one data set may be part of another's."""
    bits = np.ones(3, dtype=bool)
    names = [
        result_path(tmp_path, Robustness(model, weights, None, data, seed, bits, ())).name
        for seed in (0, 1)
        for model, weights, data in (
            ("capsnet", "paper-seed0", "cifar10"), ("mspcaps_t", "paper-seed0", "cifar10"),
            ("mspcaps_t", "", "cifar10"),
            ("mspcaps_t", "mspcaps_t.cifar10", "cifar10"), ("mspcaps_t", "mspcaps_t.cifar10-linf8", "cifar10"),
            ("mspcaps_t", "mspcaps_t.fashionmnist_sample", "fashionmnist"),
            ("mspcaps_t", "mspcaps_t.fashionmnist_sample", "fashionmnist_sample"),
        )
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert names[3] == "attack-mspcaps_t.cifar10.json" and names[4] == "attack-mspcaps_t.cifar10-linf8.json"
