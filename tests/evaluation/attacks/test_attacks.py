"""Attacks against foolbox, against loops over single images, and against what they must never do."""

import math
from functools import partial

import pytest
import torch
from attack_makers import CLASSES, EPS, MARKS, SHAPE, images_for, plain_apgd, small_net
from torch import Tensor, nn
from torch.nn import functional as F

import mspcaps
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.attacks import apgd, bim, fgsm, has_votes, pgd, pgd_steps, square, vote_attack
from mspcaps.evaluation.attacks.apgd import checkpoints, other_class
from mspcaps.evaluation.attacks.common import Draws
from mspcaps.evaluation.attacks.objectives import OBJECTIVES
from mspcaps.evaluation.attacks.square import side_of
from mspcaps.evaluation.attacks.votes import last_block, without_routing

MODEL = small_net()
X, Y = images_for(MODEL)
RANDOM = {"pgd": pgd, "apgd": partial(apgd, steps=10), "square": partial(square, steps=60)}
ALL = {"fgsm": fgsm, "bim": bim, **RANDOM}


def wrong(x: Tensor, model: nn.Module = MODEL, y: Tensor = Y) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1) != y


@pytest.fixture(scope="module")
def foolbox():
    return pytest.importorskip("foolbox", reason="the oracle of these tests is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "steps"), [("FastGradient", 1), ("BasicIterative", 10), ("PGD", 15)])
def test_against_foolbox(foolbox, kind, steps):
    """Same loss, start, step and number of steps: the same images, and at least as many of them fool."""
    start = (X + EPS * Draws.for_images(3, X).within(X, 0)).clamp(0, 1) if kind == "PGD" else X
    if kind == "FastGradient":
        theirs = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        size, ours = EPS, fgsm(MODEL, X, Y, EPS)
    else:
        size = {"BasicIterative": EPS / 10, "PGD": 2.5 * EPS / steps}[kind]
        base = getattr(foolbox.attacks, f"Linf{kind}" if kind == "PGD" else f"Linf{kind}Attack")

        class FromStart(base):
            def get_random_start(self, x0, epsilon):
                return type(x0)(start)

        theirs = FromStart(abs_stepsize=size, steps=steps, random_start=kind == "PGD")
        ours = bim(MODEL, X, Y, EPS) if kind == "BasicIterative" else pgd(MODEL, X, Y, EPS, steps=15, seed=3)
    target = foolbox.PyTorchModel(MODEL, bounds=(0, 1), device="cpu")
    _, found, fooled = theirs(target, X, Y, epsilons=EPS)
    steps_alone = pgd_steps(lambda x: F.cross_entropy(MODEL(x), Y, reduction="sum"), X, start, EPS, size, steps)
    assert torch.allclose(steps_alone, found, rtol=0, atol=1e-7)
    assert 2 < int(fooled.sum()) < len(X), "the test can tell"
    assert bool(wrong(ours)[fooled].all())


@pytest.mark.parametrize("name", RANDOM)
def test_an_image_does_not_see_its_batch(name):
    attack, numbers = RANDOM[name], torch.arange(10, 10 + len(X))
    whole = attack(MODEL, X, Y, EPS, seed=5, numbers=numbers)
    alone = [attack(MODEL, X[i : i + 1], Y[i : i + 1], EPS, seed=5, numbers=numbers[i : i + 1]) for i in range(len(X))]
    assert torch.allclose(torch.cat(alone), whole, rtol=0, atol=1e-9)
    assert not torch.equal(attack(MODEL, X, Y, EPS, seed=6, numbers=numbers), whole)


def test_bim_against_a_loop_over_images():
    for x, y, found in zip(X, Y, bim(MODEL, X, Y, EPS, "cw"), strict=True):
        image = x.clone()
        for _ in range(10):
            scores = MODEL(image[None])[0]
            if int(scores.argmax()) != y:
                break
            image.requires_grad_()
            scores = MODEL(image[None])[0]
            loss = max(scores[k] for k in range(CLASSES) if k != y) - scores[y]
            (slope,) = torch.autograd.grad(loss, image)
            image = (image.detach() + EPS / 10 * slope.sign()).clamp(0, 1)
            image = torch.minimum(torch.maximum(image, x - EPS), x + EPS)
        assert torch.allclose(found, image.detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [10, 100])
def test_the_checkpoints_of_apgd(steps):
    assert checkpoints(steps) == MARKS[steps]


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "steps"), [("cross_entropy", 10), ("dlr", 100), ("cross_entropy", 100)])
def test_apgd_against_a_loop_over_images(objective, steps):
    eps = 0.03  # most survive and go all the way
    found = apgd(MODEL, X, Y, eps, objective, steps=steps, seed=7)
    assert int(wrong(found).sum()) < len(X) - 5
    draws = Draws.for_images(7, X).within(X, 1)
    for i in range(len(X)):
        x, y = X[i : i + 1], Y[i : i + 1]
        if bool(wrong(x, y=y)):
            assert torch.equal(found[i], x[0])
            continue
        start = (x + eps * draws[i : i + 1] / draws[i].abs().max()).clamp(0, 1)
        loss = lambda image: OBJECTIVES[objective](MODEL(image), y).sum()  # noqa: B023, E731
        seen = plain_apgd(loss, x, start, eps, steps)
        first = next((point for point in seen if bool(wrong(point, y=y))), seen[-1])
        assert torch.allclose(found[i], first[0], rtol=0, atol=1e-9)


def test_targets_are_the_other_classes_in_the_order_of_their_scores():
    with torch.no_grad():
        scores = MODEL(X)
    for rank in range(1, CLASSES):
        for row, label, found in zip(scores.tolist(), Y.tolist(), other_class(scores, Y, rank).tolist(), strict=True):
            assert found == sorted((k for k in range(CLASSES) if k != label), key=lambda k: -row[k])[rank - 1]


def test_restarts_find_more():
    once, often = (wrong(pgd(MODEL, X, Y, 0.05, steps=1, step_size=0.01, restarts=n)) for n in (1, 8))
    assert int(once.sum()) < int(often.sum()) and bool(often[once].all())


def test_the_squares_shrink_as_published():
    """p = 0.8, halved after queries 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 of 10,000."""
    x = torch.empty(1, 3, 32, 32)
    for query, halvings in ((1, 0), (10, 0), (11, 1), (50, 1), (51, 2), (201, 3), (501, 4), (1001, 5), (2001, 6)):
        assert side_of(query, 10_000, x) == max(round(math.sqrt(0.8 / 2**halvings * 1024)), 1)
    assert side_of(9_999, 10_000, x) == 1


def test_square_raises_its_loss_at_the_corners_of_the_box():
    found = square(MODEL, X, Y, EPS, steps=200)
    corner = ((found - X).abs() - EPS).abs() < 1e-9
    assert bool((corner | (found == 0) | (found == 1) | wrong(X)[:, None, None, None]).all())
    fewer = int(wrong(square(MODEL, X, Y, EPS, steps=5)).sum())
    assert fewer < int(wrong(found).sum())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "log_odds"])
def test_what_every_attack_keeps_to(name, objective):
    before = {key: value.clone() for key, value in MODEL.state_dict().items()}
    MODEL.zero_grad()  # foolbox leaves some
    found = ALL[name](MODEL.train(), X, Y, EPS, objective)
    assert MODEL.training and all(parameter.grad is None for parameter in MODEL.parameters())
    MODEL.eval()
    assert all(torch.equal(value, before[key]) for key, value in MODEL.state_dict().items())
    assert not found.requires_grad and found.shape == X.shape and found.dtype == X.dtype
    assert float((found - X).abs().max()) <= EPS + 1e-9 and float(found.min()) >= 0 and float(found.max()) <= 1
    assert int(wrong(found).sum()) > int(wrong(X).sum())
    assert torch.equal(ALL[name](MODEL, X, Y, 0.0, objective), X)


@pytest.mark.parametrize(
    "name", ["mspcaps_t", "mspcaps_t_dr", "mspcaps_t_self", "capsnet", "efficient_capsnet", "idp_capsnet", "ar_capsnet"]
)
def test_the_vote_attack_takes_every_family_with_votes(name):
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=4, in_chans=1, img_size=28).eval()
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = model(x).argmax(1)
    found = vote_attack(model, x, y, 0.1, steps=2)
    assert has_votes(model, x) and float((found - x).abs().max()) <= 0.1 + 1e-6 and not torch.equal(found, x)


@pytest.mark.parametrize("name", ["mspcaps_t", "capsnet", "mspcaps_t_self"])
def test_constant_couplings_are_those_of_the_model(name):
    """The scores are the model's own, only their gradient is another: that of the votes with the couplings fixed."""
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=4, in_chans=1, img_size=32).eval()
    for parameter in model.routing.parameters():  # or the lengths are all near one
        parameter.data *= 0.3
    x = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    block = last_block(model, x[:1])
    with without_routing(block, "constant"):
        constant = model(x)
    with without_routing(block, "uniform"):
        uniform = model(x)
    own = model(x)
    assert torch.allclose(constant, own, atol=1e-6) and not torch.allclose(uniform, own, rtol=0, atol=1e-7)
    slopes = [torch.autograd.grad(scores[:, 0].sum(), x)[0] for scores in (constant, own)]
    assert not torch.allclose(*slopes, rtol=1e-3, atol=0)


@pytest.mark.slow
def test_log_odds_find_what_saturated_lengths_hide():
    model = mspcaps.load_model("mspcaps_t.fashionmnist")
    data = mspcaps.load_dataset("fashionmnist_sample", "test", 32).subset(slice(0, 40))
    x, y = data.images / 255, data.labels
    left = {name: 40 - int(wrong(bim(model, x, y, 8 / 255, name, steps=5), model, y).sum()) for name in OBJECTIVES}
    assert left["log_odds"] < min(left["margin"], left["cross_entropy"]), left


class Blind(nn.Module):
    """Its scores come from elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return MODEL(x)


@pytest.mark.parametrize("name", ALL)
def test_bad_input(name):
    attack = ALL[name]
    for eps in (-0.1, 1.5, math.nan):
        with pytest.raises(MspcapsError, match=str(eps)):
            attack(MODEL, X, Y, eps)
    with pytest.raises(MspcapsError, match="'hinge'"):
        attack(MODEL, X, Y, EPS, "hinge")
    with pytest.raises(MspcapsError, match=r"-1 to"):
        attack(MODEL, stretched(X), Y, EPS)
    with pytest.raises(MspcapsError, match=f"5.*{CLASSES} classes"):
        attack(MODEL, X, torch.full_like(Y, CLASSES), EPS)
    with pytest.raises(MspcapsError, match="-1"):
        attack(MODEL, X, torch.full_like(Y, -1), EPS)
    with pytest.raises(MspcapsError, match=str(len(X))):
        attack(MODEL, X, Y[:3], EPS)
    with pytest.raises(MspcapsError, match="bfloat16"):
        attack(MODEL, X.bfloat16(), Y, EPS)
    with pytest.raises(MspcapsError, match="int32"):
        attack(MODEL, X, Y.int(), EPS)
    if name != "fgsm":
        with pytest.raises(MspcapsError, match="0 steps"):
            attack(MODEL, X, Y, EPS, steps=0)
    if name != "square":
        with pytest.raises(MspcapsError, match="no gradient"):
            attack(Blind(), X, Y, EPS)


def stretched(x: Tensor) -> Tensor:
    """From -1 to 1."""
    return 2 * (x - x.min()) / (x.max() - x.min()) - 1


def test_models_that_some_attacks_cannot_take():
    with pytest.raises(MspcapsError, match="Sequential"):
        vote_attack(MODEL, X, Y, EPS)
    with pytest.raises(MspcapsError, match="resnet20"):
        vote_attack(mspcaps.create_model("resnet20"), torch.rand(1, 3, 32, 32), torch.tensor([0]), EPS)
    with pytest.raises(MspcapsError, match=r"log_odds.*Sequential"):
        fgsm(MODEL, X, Y, EPS, "log_odds")
    two = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 2)).double()
    for objective, classes in (("dlr", 3), ("targeted_dlr", 4)):
        with pytest.raises(MspcapsError, match=f"{classes}.*2 classes"):
            apgd(two, X, torch.zeros_like(Y), EPS, objective)
