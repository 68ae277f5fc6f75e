"""Attacks: change images within a budget so that the model errs. All have one signature:

attack(model, x, y, eps, objective, ...) -> images at most eps away from x, in [0, 1]
"""

from mspcaps.evaluation.attacks.apgd import apgd
from mspcaps.evaluation.attacks.objectives import OBJECTIVES
from mspcaps.evaluation.attacks.pgd import bim, fgsm, pgd, pgd_steps
from mspcaps.evaluation.attacks.square import square
from mspcaps.evaluation.attacks.suite import METHODS, Trial, attack
from mspcaps.evaluation.attacks.votes import has_votes, vote_attack

__all__ = [
    "METHODS", "OBJECTIVES", "Trial", "apgd", "attack", "bim", "fgsm", "has_votes", "pgd", "pgd_steps", "square",
    "vote_attack",
]  # fmt: skip
