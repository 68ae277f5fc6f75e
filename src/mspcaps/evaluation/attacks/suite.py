"""Run several attacks with several budgets on a model and a set of images: `mspcaps.attack` and `mspcaps attack`."""

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mspcaps.data import FolderImages, ImageSet, load_dataset
from mspcaps.data.imageset import to_float
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.accuracy import Data, all_scores, full_precision, limit_batch, placement, prepare
from mspcaps.evaluation.attacks.apgd import TARGETED, apgd
from mspcaps.evaluation.attacks.common import Draws, attacked, check_eps
from mspcaps.evaluation.attacks.objectives import OBJECTIVES, find_objective, has_lengths
from mspcaps.evaluation.attacks.pgd import bim, fgsm, gradient, pgd, pgd_steps
from mspcaps.evaluation.attacks.square import square
from mspcaps.evaluation.attacks.votes import has_votes, vote_attack
from mspcaps.evaluation.load import load_for
from mspcaps.evaluation.robustness import Bits, Curve, Point, Robustness, parse_eps
from mspcaps.files import ProgressFn, no_progress, sha256_of, weights_name
from mspcaps.models import as_model, unwrapped, weights_path
from mspcaps.models.layers import check_labels, in_eval_mode

EPS = (1 / 255, 2 / 255, 4 / 255, 8 / 255)
ATTACKS = ("fgsm", "pgd", "apgd")
BATCH = {"cpu": 50}  # images by device: few enough on a CPU for the progress bar to move
BATCH_ELSEWHERE = 2500


@dataclass(frozen=True)
class Method:
    """How an attack is called, and its defaults."""

    run: Callable[..., Tensor]
    objective: str
    steps: int
    white_box: bool = True
    random: bool = True  # takes restarts, seed and the numbers of the images


METHODS = {
    "fgsm": Method(fgsm, "cross_entropy", 1, random=False),
    "bim": Method(bim, "cross_entropy", 10, random=False),
    "pgd": Method(pgd, "cross_entropy", 20),
    "apgd": Method(apgd, "cross_entropy", 100),
    "square": Method(square, "cw", 5000, white_box=False),
    "votes": Method(vote_attack, "cross_entropy", 20),
}


@dataclass(frozen=True)
class Trial:
    """An attack with its settings, written NAME[-STEPS][:OBJECTIVE], such as pgd-50:cw."""

    name: str
    objective: str
    steps: int
    restarts: int = 1

    @classmethod
    def parse(cls, text: str, restarts: int = 1) -> "Trial":
        match = re.fullmatch(r"([a-z]+)(?:-(\d+))?(?::([a-z_]+))?", text)
        if match is None or match[1] not in METHODS:
            raise MspcapsError(
                f"there is no attack {text!r}: write NAME[-STEPS][:OBJECTIVE], such as pgd-50:cw; the names are "
                f"{', '.join(METHODS)}"
            )
        method = METHODS[match[1]]
        steps, objective = int(match[2] or method.steps), match[3] or method.objective
        if steps < 1 or restarts < 1 or (match[1] == "fgsm" and steps != 1):
            raise MspcapsError(
                f"{text!r} with {restarts} restarts is impossible: FGSM takes one step, other attacks at least one, "
                "and all of them at least one restart"
            )
        if objective not in OBJECTIVES and (match[1], objective) != ("apgd", TARGETED):
            choices = ", ".join((*OBJECTIVES, TARGETED) if match[1] == "apgd" else OBJECTIVES)
            raise MspcapsError(f"unknown objective {objective!r} for {match[1]}: choose one of {choices}")
        return cls(match[1], objective, steps, restarts if method.random else 1)

    @property
    def method(self) -> Method:
        return METHODS[self.name]

    def run(self, model: nn.Module, x: Tensor, y: Tensor, eps: float, seed: int, numbers: Tensor) -> Tensor:
        """-> adversarial images; `numbers` [b] are those of the images in their set."""
        options: dict[str, Any] = {} if self.name == "fgsm" else {"steps": self.steps}
        if self.method.random:
            options |= {"restarts": self.restarts, "seed": seed, "numbers": numbers}
        return self.method.run(model, x, y, eps, self.objective, **options)


@dataclass
class Target:
    """A model, images, and which of them it gets right: those are attacked."""

    model: nn.Module
    images: Tensor  # uint8, or floats in [0, 1]
    labels: Tensor
    clean: Bits
    batch_size: int
    seed: int

    def some(self, count: int) -> "Target":
        """Only the first `count` images that the model gets right."""
        index = torch.from_numpy(self.clean.nonzero()[0][:count])
        clean = np.ones(len(index), dtype=bool)
        return Target(self.model, self.images[index], self.labels[index], clean, self.batch_size, self.seed)

    def fingerprint(self) -> str:
        """The sha256 of images and labels."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def batch(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device, dtype = placement(self.model)
        return to_float(self.images[numbers].to(device)).to(dtype), self.labels[numbers].to(device)

    def batches(self, mask: Bits) -> Sequence[Tensor]:
        """Numbers of the images where the mask is true."""
        return torch.from_numpy(mask.nonzero()[0]).split(self.batch_size) if mask.any() else ()

    def survivors(
        self, trial: Trial, eps: float, among: Bits | None = None, tick: Callable[[int], None] = lambda images: None
    ) -> Bits:
        """Which images the model still gets right, `among` some (default: all that it gets right without an attack)."""
        survived = np.zeros_like(self.clean)
        for numbers in self.batches(self.clean if among is None else among):
            x, y = self.batch(numbers)
            on_device = numbers.to(x.device)
            images = trial.run(self.model, x, y, eps, self.seed, on_device)
            right = self.judge(trial, x, images, y, eps)
            if x.is_cuda:
                # The attack computes in TF32: an image that only just fools there need not fool in fp32.
                close = (right & (self.scores(images, rounded=True).argmax(1) != y)).nonzero().squeeze(1)
                if len(close):
                    with full_precision(x.device):
                        images = trial.run(self.model, x[close], y[close], eps, self.seed, on_device[close])
                    right[close] = self.judge(trial, x[close], images, y[close], eps)
            survived[numbers.numpy()] = right.cpu().numpy()
            tick(len(numbers))
        return survived

    def transferred(self, source: nn.Module, eps: float) -> Bits:
        """Which images the model still gets right after PGD on the `source`. PGD takes all its steps: an image that
        only just fools one model seldom fools another."""
        survived, steps = np.zeros_like(self.clean), METHODS["pgd"].steps
        name = "log_odds" if has_lengths(source) else "cross_entropy"
        for numbers in self.batches(self.clean):
            x, y = self.batch(numbers)
            start = Draws.for_images(self.seed, x, numbers).start(x, eps, 0)
            with attacked(source, x, y, eps) as classes:
                loss = find_objective(name, source, classes)
                ascend = lambda images: loss(source(images), y).sum()  # noqa: B023, E731 - called at once
                images = pgd_steps(ascend, x, start, eps, 2.5 * eps / steps, steps)
            survived[numbers.numpy()] = (self.scores(images).argmax(1) == y).cpu().numpy()
        return survived

    def judge(self, trial: Trial, x: Tensor, images: Tensor, y: Tensor, eps: float) -> Tensor:
        """Which adversarial images the model gets right, in full precision; images outside the budget are an error."""
        moved = float((images - x).abs().max())
        if moved > eps + 1e-6 or not (images.min() >= 0 and images.max() <= 1):
            raise MspcapsError(f"{trial.name} left its bounds: it moved a pixel by {moved:g} with eps {eps:g}")
        return self.scores(images).argmax(1) == y

    @torch.no_grad()
    def scores(self, x: Tensor, rounded: bool = False) -> Tensor:
        """In full precision, or `rounded` as attacks compute them."""
        precision = torch.autocast(x.device.type, enabled=False) if rounded else full_precision(x.device)
        with in_eval_mode(self.model), precision:
            return self.model(x)

    def zero_gradients(self, objective: str) -> float:
        """Share of the images that the model gets right whose gradient has no sign in any pixel: it is exactly zero, or
        not a number."""
        zero = total = 0
        name = "dlr" if objective == TARGETED else objective
        for numbers in self.batches(self.clean):
            x, y = self.batch(numbers)
            with in_eval_mode(self.model), full_precision(x.device):
                loss = find_objective(name, self.model, self.model(x[:1]).shape[1])
                slope = gradient(lambda images: loss(self.model(images), y).sum(), x)  # noqa: B023 - called at once
            zero += int((slope.sign().flatten(1) == 0).all(1).sum())
            total += len(numbers)
        return zero / total if total else 0.0


def attack(
    model: nn.Module | str | Path,
    data: Data | None = None,
    eps: float | str | Sequence[float | str] = EPS,
    attacks: str | Sequence[str] | None = None,
    *,
    restarts: int = 1,
    images: int | None = None,
    split: str = "test",
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    surrogate: nn.Module | str | Path | None = None,
    check: bool = True,
    progress: ProgressFn = no_progress,
) -> Robustness:
    """Measure a model's accuracy under attack, and whether the figures can be trusted.

    `model` and `data` are as in `evaluate`; a module of your own maps images in [0, 1] to scores [b, classes]. `eps`
    are budgets in pixel units (Linf), also written as "8/255". `attacks` are written NAME[-STEPS][:OBJECTIVE] with the
    names fgsm, bim, pgd, apgd, square, votes and the objectives margin, cross_entropy, log_odds, cw, dlr, and
    targeted_dlr for apgd; default: fgsm, pgd, apgd, and for capsules apgd and votes on log_odds. `images` limits their
    number: of a data set it takes random ones, always the same, of a pair the first ones. `check` runs the diagnostics,
    whose sentences become the `cautions` of the result; one of them tries images that fool a `surrogate` on the model.
    """
    from mspcaps.evaluation.attacks.diagnostics import diagnose

    budgets = sorted({parse_eps(str(value)) for value in ([eps] if isinstance(eps, float | Real | str) else eps)})
    for value in budgets:
        check_eps(value)
    names = ATTACKS if attacks is None else [attacks] if isinstance(attacks, str) else attacks
    trials = [Trial.parse(text, restarts) for text in names]
    if not budgets or not trials:
        raise MspcapsError("name at least one eps and one attack, such as eps=8/255 and attacks='pgd'")
    weights, sha256 = "", None
    if isinstance(model, str | Path):
        weights, sha256 = weights_name(model), sha256_of(weights_path(model))
    if surrogate is not None and not check:
        raise MspcapsError("the surrogate is used by one of the checks, which are off: leave it out or turn them on")
    model, helper = as_model(model), None if surrogate is None else as_model(surrogate)
    name, target = open_target(model, data, split, images, batch_size, seed, device, progress)
    if attacks is None and has_lengths(model):
        trials.append(Trial.parse("apgd:log_odds", restarts))
        if has_votes(model, target.batch(torch.tensor([0]))[0]):
            trials.append(Trial.parse("votes:log_odds", restarts))
    for trial in trials:  # what does not suit the model is refused before hours of attacking, not after
        replace(trial, steps=1, restarts=1).run(model, *target.batch(torch.tensor([0])), 0.0, seed, torch.tensor([0]))
    curves = run_trials(target, trials, budgets, progress)
    if helper is not None:
        helper.to(placement(model)[0])
    cautions = diagnose(target, trials, curves, helper, progress) if check else ()
    config = getattr(unwrapped(model), "config", {})
    return Robustness(
        model=config.get("name", type(unwrapped(model)).__name__), weights=weights, weights_sha256=sha256, dataset=name,
        seed=seed, clean=target.clean, curves=tuple(curves), cautions=cautions, images_sha256=target.fingerprint(),
    )  # fmt: skip


def run_trials(target: Target, trials: Sequence[Trial], budgets: Sequence[float], progress: ProgressFn) -> list[Curve]:
    """Run every attack with every budget."""
    done, total = 0, len(trials) * len(budgets) * int(target.clean.sum())
    curves = []
    for trial in trials:

        def tick(count: int, name: str = f"attacking, {trial.name}-{trial.steps}:{trial.objective}") -> None:
            nonlocal done
            done += count
            progress(name, done, total)

        points = []
        for eps in budgets:
            began = time.perf_counter()
            survived = target.survivors(trial, eps, tick=tick)
            points.append(Point(eps, survived, time.perf_counter() - began))
        zero = target.zero_gradients(trial.objective) if trial.method.white_box else None
        curves.append(Curve(trial.name, trial.objective, trial.steps, trial.restarts, zero, tuple(points)))
    return curves


def open_target(
    model: nn.Module, data: Data | None, split: str, images: int | None, batch_size: int | None, seed: int,
    device: torch.device | str | None, progress: ProgressFn,
) -> tuple[str, Target]:  # fmt: skip
    """-> the name of the data, and the target of the attacks."""
    inner = unwrapped(model)
    if data is None or isinstance(data, str | Path):
        if hasattr(inner, "config"):
            data = load_for(model, data, split, progress)
        elif data is None:
            raise MspcapsError(f"a {type(inner).__name__} does not say which data it was trained on: name the data")
        else:
            data = load_dataset(data, split)
        if split != "test":
            data = replace(data, name=f"{data.name} {split}")  # results and files are named after it
    name = data.name if isinstance(data, ImageSet | FolderImages) else "own images"
    if isinstance(data, FolderImages):
        data = data.resident()
    if isinstance(data, ImageSet) and images is not None and 1 <= images < len(data):
        data = data.split(images)[1]  # random, as in `eval --images`: a folder lists one class after another
    _, x, y, _ = prepare(model, data, device)
    if images is not None and not 1 <= images <= len(x):
        raise MspcapsError(f"images is {images:,}, but must be from 1 to {len(x):,}, the images there are")
    if batch_size is not None and batch_size < 1:
        raise MspcapsError(f"batch_size is {batch_size}, but must be at least 1")
    x, y = x[:images], y[:images]
    size = limit_batch(inner, batch_size or BATCH.get(placement(model)[0].type, BATCH_ELSEWHERE))
    scores = all_scores(model, x, size)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise MspcapsError(f"the model must give scores [b, classes], not {tuple(scores.shape)}")
    check_labels(y, scores.shape[1])
    return name, Target(model, x, y, (scores.argmax(1) == y).numpy(), size, seed)
