"""Accuracy, calibration and routing health of trained models, under natural change and attack, and predictions."""

from typing import TYPE_CHECKING

from mspcaps.evaluation.predict import Prediction, Predictions, predict, stream_predictions
from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.evaluation.accuracy import Evaluation, confidence, evaluate
    from mspcaps.evaluation.attacks import attack
    from mspcaps.evaluation.ensemble import evaluate_ensemble
    from mspcaps.evaluation.load import load_for
    from mspcaps.evaluation.robustness import Robustness
    from mspcaps.evaluation.shift_results import ShiftResult, write_shifts
    from mspcaps.evaluation.shifts import ShiftEvaluation, evaluate_shifts

__all__ = [
    "Evaluation", "Prediction", "Predictions", "Robustness", "ShiftEvaluation", "ShiftResult", "attack", "confidence",
    "evaluate", "evaluate_ensemble", "evaluate_shifts", "load_for", "predict", "stream_predictions", "write_shifts",
]  # fmt: skip

# These need torch, the rest does not.
_HOMES = {
    "Evaluation": "accuracy", "Robustness": "robustness", "ShiftEvaluation": "shifts", "ShiftResult": "shift_results",
    "attack": "attacks", "confidence": "accuracy", "evaluate": "accuracy", "evaluate_ensemble": "ensemble",
    "evaluate_shifts": "shifts", "load_for": "load", "write_shifts": "shift_results",
}  # fmt: skip
__getattr__ = lazy_attributes(__name__, _HOMES)
