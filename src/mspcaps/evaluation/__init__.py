"""Accuracy and calibration of trained models, and predictions for pictures."""

from typing import TYPE_CHECKING

from mspcaps.evaluation.predict import Prediction, predict, stream_predictions
from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.evaluation.accuracy import Evaluation, confidence, evaluate
    from mspcaps.evaluation.attacks import attack
    from mspcaps.evaluation.load import load_for
    from mspcaps.evaluation.robustness import Robustness

__all__ = [
    "Evaluation", "Prediction", "Robustness", "attack", "confidence", "evaluate", "load_for", "predict",
    "stream_predictions",
]  # fmt: skip

# These need torch, the rest does not.
_HOMES = {
    "Evaluation": "accuracy", "Robustness": "robustness", "attack": "attacks", "confidence": "accuracy",
    "evaluate": "accuracy", "load_for": "load",
}  # fmt: skip
__getattr__ = lazy_attributes(__name__, _HOMES)
