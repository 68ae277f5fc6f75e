"""Accuracy and calibration of trained models, and predictions for pictures."""

from mspcaps.evaluation.accuracy import Evaluation, confidence, evaluate
from mspcaps.evaluation.load import load_for
from mspcaps.evaluation.predict import predict, stream_predictions
from mspcaps.pictures import Prediction

__all__ = ["Evaluation", "Prediction", "confidence", "evaluate", "load_for", "predict", "stream_predictions"]
