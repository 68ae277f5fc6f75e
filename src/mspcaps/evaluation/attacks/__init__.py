"""Attacks: images changed within a budget so that a model errs. One file each."""

from mspcaps.evaluation.attacks.fgsm import fgsm
from mspcaps.evaluation.attacks.objectives import OBJECTIVES
from mspcaps.evaluation.attacks.steps import pgd_steps, random_start

__all__ = ["OBJECTIVES", "fgsm", "pgd_steps", "random_start"]
