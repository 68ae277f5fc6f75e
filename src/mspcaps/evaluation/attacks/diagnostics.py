"""Whether measured robustness can be trusted: automatic checks, each with a sentence if it fails.

They follow Carlini et al., On Evaluating Adversarial Robustness (2019), and the checks of AutoAttack. A model that
passes them all may still fall to an attack that nobody has tried; if it fails one, its figures cannot be trusted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
from torch import nn

from mspcaps.evaluation.accuracy import placement
from mspcaps.evaluation.attacks.suite import METHODS, Target, Trial
from mspcaps.evaluation.robustness import Bits, Caution, Curve, format_eps, same
from mspcaps.files import ProgressFn, no_progress

PROBED = {"cpu": 50}  # images by device, for checks that run more attacks
PROBED_ELSEWHERE = 1000
SLACK = 0.5  # points of accuracy: a smaller contradiction means nothing
BLACK_BOX = 0.2  # points that an attack without gradients may gain, as in AutoAttack
LARGE = 0.5  # with this eps every image can become the same grey
COMPARISONS = {"zero gradients", "falls with eps", "iterated beats single", "white beats black"}
MAX_GAIN = 2.0  # points that twice the steps and one more start may gain


def diagnose(
    target: Target, trials: Sequence[Trial], curves: Sequence[Curve], surrogate: nn.Module | None = None,
    progress: ProgressFn = no_progress,
) -> tuple[Caution, ...]:  # fmt: skip
    """All checks on the results of the trials."""
    cautions = compare(curves)
    if target.clean.any():
        cautions += [*unchanged(target), *large_eps(target, trials, progress), *converged(target, trials, curves)]
        if surrogate is not None:
            cautions += transfer(target, curves, surrogate)
    return tuple(cautions)


def compare(curves: Sequence[Curve]) -> list[Caution]:
    """The checks that need no model, named in COMPARISONS."""
    return [*zero_gradients(curves), *falling(curves), *iterated(curves), *black_box(curves)]


def zero_gradients(curves: Sequence[Curve]) -> Iterator[Caution]:
    shares = {curve.objective: curve.zero_gradients for curve in curves if curve.zero_gradients}
    for objective, share in shares.items():
        yield Caution(
            "zero gradients",
            f"{100 * share:.2f} % of the images have a gradient of exactly zero or NaN under {objective}: such an "
            f"attack cannot move them, and their survival says nothing about the model.",
        )


def unchanged(target: Target) -> Iterator[Caution]:
    """The same images must get the same scores twice, and survive an attack with eps = 0."""
    probe = target.some(probe_size(target))
    survived = probe.survivors(Trial.parse("square-1"), 0.0)
    x, _ = probe.batch(probe.batches(probe.clean)[0])
    difference = float((probe.scores(x) - probe.scores(x)).abs().max())
    if not survived.all() or difference > 1e-4:
        yield Caution(
            "eps 0",
            f"With eps = 0, {int((~survived).sum())} of {len(survived)} images are lost, and scores differ by "
            f"{difference:.1e} between two calls: the model is random, so attack the mean of many answers.",
        )


def falling(curves: Sequence[Curve]) -> Iterator[Caution]:
    for curve in curves:
        for small, large in pairwise(curve.points):
            if large.accuracy > small.accuracy + slack(large.survived):
                yield Caution(
                    "falls with eps",
                    f"Under {curve.label}, accuracy rises from {small.accuracy:.2f} to {large.accuracy:.2f} % as eps "
                    f"grows from {format_eps(small.eps)} to {format_eps(large.eps)}: the attack misses adversarial "
                    f"images that exist, so take more steps or another objective.",
                )
                break


def iterated(curves: Sequence[Curve]) -> Iterator[Caution]:
    singles = [curve for curve in curves if curve.attack == "fgsm"]
    repeated = [curve for curve in curves if curve.attack in ("bim", "pgd", "apgd")]
    for single, many in product(singles, repeated):
        for point in many.points if single.objective == many.objective else ():
            once = single.at(point.eps)
            if once and point.accuracy > once.accuracy + slack(point.survived):
                yield Caution(
                    "iterated beats single",
                    f"With eps {format_eps(point.eps)}, {many.label} leaves {point.accuracy:.2f} %, but a single step "
                    f"only {once.accuracy:.2f} %: the gradients are misleading, perhaps masked.",
                )
                break


def black_box(curves: Sequence[Curve]) -> Iterator[Caution]:
    for curve in curves:
        if METHODS[curve.attack].white_box:
            continue
        for point in curve.points:
            gained = missed(curves, point.eps, point.survived)
            if gained > allowed(len(point.survived)):
                yield Caution(
                    "white beats black",
                    f"With eps {format_eps(point.eps)}, {curve.label} uses no gradients, but fools the model on "
                    f"{gained} images where no attack with gradients does: the gradients are masked.",
                )
                break


def transfer(target: Target, curves: Sequence[Curve], surrogate: nn.Module) -> Iterator[Caution]:
    for eps in sorted({point.eps for curve in curves for point in curve.points if point.eps > 0}):
        survived = target.transferred(surrogate, eps)
        gained = missed(curves, eps, survived)
        if gained > allowed(len(survived)):
            yield Caution(
                "white beats transfer",
                f"With eps {format_eps(eps)}, images made for the surrogate fool the model {gained} times where no "
                f"attack on the model itself does: its own gradients are masked.",
            )
            return


def large_eps(target: Target, trials: Sequence[Trial], progress: ProgressFn) -> Iterator[Caution]:
    """With a very large eps every objective must fool the model on all images."""
    probe = target.some(probe_size(target))
    objectives = dict.fromkeys(
        "dlr" if trial.objective == "targeted_dlr" else trial.objective for trial in trials if trial.method.white_box
    )
    for done, objective in enumerate(objectives):
        progress("checking the attacks", done, len(objectives))
        survived = probe.survivors(Trial("pgd", objective, 20), LARGE)
        if 100 * survived.mean() > SLACK:
            yield Caution(
                "large eps",
                f"With eps {LARGE}, enough to turn every image grey, PGD on {objective} still leaves "
                f"{100 * survived.mean():.1f} % of {len(survived)} images right: its gradients are misleading.",
            )


def converged(target: Target, trials: Sequence[Trial], curves: Sequence[Curve]) -> Iterator[Caution]:
    """Repeat the strongest iterated attack with twice the steps and one more start, at the eps where about half of the
    images survive."""
    candidates = [
        (trial, point)
        for trial, curve in zip(trials, curves, strict=True)
        if trial.method.white_box and trial.name != "fgsm"
        for point in curve.points
        if point.eps > 0 and point.survived.any()
    ]
    if not candidates:
        return
    half = 50 * target.clean.mean()
    _, middle = min(candidates, key=lambda pair: abs(pair[1].accuracy - half))
    strongest = [(trial, point) for trial, point in candidates if same(point.eps, middle.eps)]
    trial, point = min(strongest, key=lambda pair: pair[1].accuracy)
    tried: Bits = np.zeros_like(point.survived)
    tried[point.survived.nonzero()[0][: probe_size(target)]] = True
    harder = replace(trial, steps=2 * trial.steps, restarts=trial.restarts + trial.method.random)
    survived = replace(target, seed=target.seed + 1).survivors(harder, point.eps, among=tried)
    fooled = int(tried.sum() - survived.sum())
    gain = point.accuracy * fooled / int(tried.sum())
    if fooled > 1 and gain > MAX_GAIN:
        yield Caution(
            "more steps help",
            f"With eps {format_eps(point.eps)}, twice the steps and one more start of {trial.name} fool the model on "
            f"{fooled} of the {int(tried.sum())} survivors tried: {point.accuracy:.2f} % is too high by about "
            f"{gain:.1f} points.",
        )


def missed(curves: Sequence[Curve], eps: float, survived: Bits) -> int:
    """How many images an attack fools the model on that survive every attack with gradients."""
    white = [point.survived for curve in curves if METHODS[curve.attack].white_box and (point := curve.at(eps))]
    return int((np.logical_and.reduce(white) & ~survived).sum()) if white else 0


def allowed(n: int) -> float:
    """Number of images; one or two in a few hundred are chance."""
    return max(2.0, BLACK_BOX / 100 * n)


def slack(survived: Bits) -> float:
    """Points of accuracy, at least two images' worth."""
    return max(SLACK, 200 / len(survived))


def probe_size(target: Target) -> int:
    return PROBED.get(placement(target.model)[0].type, PROBED_ELSEWHERE)
