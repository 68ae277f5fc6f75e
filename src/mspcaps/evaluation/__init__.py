"""Accuracy and calibration of trained models, and predictions for pictures."""

from typing import TYPE_CHECKING

from mspcaps.evaluation.predict import Prediction, predict, stream_predictions
from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.evaluation.accuracy import Evaluation, confidence, evaluate
    from mspcaps.evaluation.ensemble import evaluate_ensemble
    from mspcaps.evaluation.load import load_for

__all__ = [
    "Evaluation", "Prediction", "confidence", "evaluate", "evaluate_ensemble", "load_for", "predict",
    "stream_predictions",
]  # fmt: skip

# These need torch, the rest does not.
__getattr__ = lazy_attributes(
    __name__,
    {"Evaluation": "accuracy", "confidence": "accuracy", "evaluate": "accuracy", "evaluate_ensemble": "ensemble"}
    | {"load_for": "load"},
)
