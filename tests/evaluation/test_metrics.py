"""Precision, recall, F1, AUC and calibration against plain loops in NumPy."""

import math

import numpy as np
import pytest
import torch

from mspcaps.capsules import margin_loss
from mspcaps.evaluation import Evaluation
from mspcaps.evaluation.accuracy import measure
from mspcaps.evaluation.metrics import calibrate


def found(n: int = 80, k: int = 5, kind: str = "lengths", seed: int = 0) -> Evaluation:
    """Scores with many ties; class 3 has no images, class 4 is never the answer."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, 6, (n, k)) / 6
    scores[:, 4] = 0.0
    scores += np.linspace(1e-9, 0, k)  # ties between classes go to the first
    labels = random.choice([0, 1, 2, 4], n)
    model = torch.nn.Identity()
    model.scores = kind  # type: ignore[assignment]
    model.criterion = margin_loss  # type: ignore[assignment]
    return measure(model, torch.from_numpy(np.round(scores, 6)).float(), torch.from_numpy(labels), tuple("abcde"))


def test_precision_recall_and_f1_against_a_loop():
    one = found()
    labels, answers = one.labels.numpy(), one.predictions.numpy()
    for k in range(5):
        hits = sum(y == a == k for y, a in zip(labels, answers, strict=True))
        given, there = (answers == k).sum(), (labels == k).sum()
        precision, recall, f1 = (float(values[k]) for values in one.class_metrics)
        assert math.isnan(precision) if not given else precision == pytest.approx(100 * hits / given)
        assert math.isnan(recall) if not there else recall == pytest.approx(100 * hits / there)
        assert f1 == pytest.approx(100 * 2 * hits / (given + there))
    assert math.isnan(one.class_metrics.recall[3]) and math.isnan(one.class_metrics.precision[4])
    assert one.class_metrics.f1[4] == 0, "it has images and is never the answer"


@pytest.mark.parametrize("kind", ["lengths", "logits"])
def test_auc_counts_every_pair_and_ties_half(kind):
    one = found(kind=kind)
    scores = one.scores.double().numpy()
    if kind == "logits":
        scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels, ties = one.labels.numpy(), 0
    for k in (0, 1, 2, 4):
        wins = 0.0
        for own in scores[labels == k, k]:
            for other in scores[labels != k, k]:
                wins += 1.0 if own > other else 0.5 if own == other else 0.0
                ties += own == other
        pairs = (labels == k).sum() * (labels != k).sum()
        assert one.auc[k] == pytest.approx(wins / pairs, abs=1e-12 if kind == "lengths" else 5e-3)
    assert math.isnan(one.auc[3])
    assert ties > 100 or kind == "logits"


def test_auc_tells_apart_what_softmax_rounds_to_one():
    logits = torch.tensor([[30.0, 0.0], [20.0, 0.0], [25.0, 0.0]])
    one = measure(torch.nn.Identity(), logits, torch.tensor([0, 1, 0]), ("a", "b"))
    assert one.presence[:, 0].tolist() == [1, 1, 1] and one.auc.tolist() == [1, 1]


def test_a_set_of_one_class_has_no_auc():
    one = measure(torch.nn.Identity(), torch.rand(4, 2), torch.zeros(4).long(), ("a", "b"))
    assert one.auc.isnan().all()


def test_calibration_bins_against_a_loop():
    random = np.random.default_rng(1)
    sure, right = random.random(200), random.random(200) < 0.5
    bins = calibrate(torch.from_numpy(sure), torch.from_numpy(right), 10)
    for b in range(10):
        inside = [i for i in range(200) if b / 10 < sure[i] <= (b + 1) / 10]
        assert bins.images[b] == len(inside)
        assert bins.confidence[b] == pytest.approx(np.mean(sure[inside]))
        assert bins.accuracy[b] == pytest.approx(np.mean(right[inside]))
    gaps = abs(bins.accuracy - bins.confidence) * bins.images / 200
    assert bins.error == pytest.approx(float(gaps.sum()))
    assert calibrate(torch.tensor([0.95]), torch.tensor([True])).confidence.isnan().sum() == 14
