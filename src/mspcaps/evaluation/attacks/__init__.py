"""Attacks: images changed within a budget so that a model errs. One file each."""

from mspcaps.evaluation.attacks.fgsm import fgsm

__all__ = ["fgsm"]
