"""One self-contained HTML page about an evaluation, written by quickstart, train and eval.

report/run.py fills in a `Page` for a run or for weights, and `write_page` writes it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import nn

from mspcaps.data import ImageSet
from mspcaps.evaluation import Evaluation
from mspcaps.files import write_atomically
from mspcaps.models import unwrapped
from mspcaps.pages import Bar, image_url, render, score_unit
from mspcaps.pages.charts import bins_chart, confusion_chart
from mspcaps.report.curves import accuracy_chart, loss_chart
from mspcaps.report.mistakes import Maps, explain_mistakes
from mspcaps.training import Epoch

MAX_BARS = 4  # classes of an example
MAX_EXAMPLES = 10  # of each kind
MAX_MATRIX = 40  # classes in a confusion matrix; with more, the most confused pairs are listed instead
MAX_ROWS = 20  # pairs in that list, and classes in a table of more than MAX_MATRIX before the rest is folded away


@dataclass(frozen=True)
class Page:
    """The content of the page."""

    title: str  # model and data: "MSPCaps-T on ..."
    facts: Sequence[tuple[str, str]]  # name, value
    evaluation: Evaluation
    data: ImageSet  # the images that were evaluated
    commands: Sequence[tuple[str, str]]  # what it does, the command
    footer: str
    history: Sequence[Epoch] = ()  # if empty, the page has no curves
    images_are: str = "test images"
    watched: str = "test images"  # that the accuracies in the history were measured on
    notes: Sequence[str] = ()  # sentences about files that were not used
    shown: ImageSet | None = None  # the same images for the reader, if other than for the model
    capsules: bool = True  # whether the scores are lengths of capsules
    maps: dict[int, Maps] = field(default_factory=dict)  # of the explained mistakes, by the number of the image


@dataclass(frozen=True)
class Example:
    """One image with its true class, the answer, and the bars of its strongest classes."""

    image: str  # data URL
    true: str
    answer: str
    bars: list[Bar]
    maps: Maps | None = None


def write_page(path: str | Path, page: Page, model: nn.Module | None = None) -> Path:
    """Write the page; if the model can be explained within seconds, it explains the most confident mistakes."""
    if model is not None:
        maps = explain_mistakes(model, page.data, page.evaluation, choose_wrong(page.evaluation))
        page = replace(page, maps=maps, capsules=hasattr(unwrapped(model), "forward_capsules"))
    write_atomically(path, render_page(page))
    return Path(path).resolve()


def render_page(page: Page) -> str:
    result = page.evaluation
    matrix = len(result.classes) <= MAX_MATRIX
    confusion = confusion_chart(result.confusion.tolist(), result.classes) if matrix else ""
    wrong = [make_example(page, index) for index in choose_wrong(result)]
    return render(
        "evaluation.html", title=page.title, page=page, evaluation=result, summary=summary(result), curves=curves(page),
        confusion=confusion, numbers='class="count' in confusion, pairs=[] if matrix else confused_pairs(result),
        classes=class_rows(result), means=mean_row(result), most=len(result.classes) if matrix else MAX_ROWS,
        calibration=calibration_charts(result),
        right=[make_example(page, index) for index in choose_right(result)],
        explained=[example for example in wrong if example.maps],
        wrong=[example for example in wrong if not example.maps],
        unit=score_unit(result.kind, page.capsules),
    )  # fmt: skip


def curves(page: Page) -> list[tuple[str, Markup]]:
    """(title, chart) of how the model learned."""
    if not page.history:
        return []
    losses, accuracies = [row.loss for row in page.history], [row.accuracy for row in page.history]
    charts = [
        ("Loss on the training images, logarithmic", loss_chart([losses], "Loss")),
        (f"Accuracy on the {page.watched}, in percent", accuracy_chart([accuracies], "Accuracy")),
    ]
    robust = [row.validation for row in page.history if row.validation is not None]
    if robust and robust != accuracies:
        title = "Accuracy on validation images under attack, in percent"
        charts.append((title, accuracy_chart([robust], "Robust accuracy")))
    return charts


def calibration_charts(result: Evaluation) -> list[tuple[str, Markup]]:
    bins = result.calibration
    right = [100 * value for value in bins.accuracy.tolist()]
    shares = (100 * bins.images / result.n).tolist()
    return [
        ("Right answers at each confidence", bins_chart(right, "Accuracy by confidence", diagonal=True)),
        ("Images at each confidence", bins_chart(shares, "Share of the images by confidence")),
    ]


def class_rows(result: Evaluation) -> list[tuple[str, ...]]:
    """Class, images, precision, recall, F1, AUC; if there are many classes, the worst F1 comes first."""
    images, auc = result.confusion.sum(1).tolist(), result.auc.tolist()
    columns = [values.tolist() for values in result.class_metrics]
    order, f1 = list(range(len(result.classes))), columns[2]
    if len(order) > MAX_MATRIX:
        order.sort(key=lambda k: math.inf if math.isnan(f1[k]) else f1[k])
    return [
        (result.classes[k], f"{images[k]:,}", *(number(column[k], 1) for column in columns), number(auc[k], 3))
        for k in order
    ]


def as_document(result: Evaluation) -> dict[str, Any]:
    """The figures for programs, under stable keys that docs/formats.md explains."""
    measures, auc = result.class_metrics, result.auc
    return {
        "images": result.n,
        "flip": result.flip,
        "accuracy": result.accuracy,
        **{measure: values.nanmean().item() for measure, values in measures._asdict().items()},
        "auc": auc.nanmean().item(),
        "loss": result.loss,
        "confidence": result.confidence,
        "calibration_error": result.ece,
        "classes": [
            {
                "class": name, "images": int(result.confusion[k].sum()),
                **{measure: values[k].item() for measure, values in measures._asdict().items()}, "auc": auc[k].item(),
            }
            for k, name in enumerate(result.classes)
        ],
        "confusion": result.confusion.tolist(),
        "routing": [asdict(block) | {"collapsed": block.collapsed} for block in result.health],
    }  # fmt: skip


def mean_row(result: Evaluation) -> tuple[str, ...]:
    """The mean over the classes for which a measure is defined."""
    means = [number(values.nanmean().item(), 1) for values in result.class_metrics]
    return ("mean", "", *means, number(result.auc.nanmean().item(), 3))


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def confused_pairs(result: Evaluation) -> list[tuple[str, ...]]:
    """The most frequent mistakes: true class, answer, count, share of the class."""
    mistakes = result.confusion.clone().fill_diagonal_(0)
    counts, places = mistakes.flatten().sort(descending=True, stable=True)
    totals, k = result.confusion.sum(1), len(result.classes)
    rows: list[tuple[str, ...]] = []
    for count, place in zip(counts[:MAX_ROWS].tolist(), places[:MAX_ROWS].tolist(), strict=True):
        true, answer = divmod(place, k)
        if count:
            share = f"{100 * count / int(totals[true]):.0f} %"
            rows.append((result.classes[true], result.classes[answer], f"{count:,}", share))
    return rows


def summary(result: Evaluation) -> str:
    """The best and the worst class, and the most frequent mistake, in words."""
    ranked = sorted(pair for pair in zip(result.per_class, result.classes, strict=True) if not math.isnan(pair[0]))
    worst, best = (f"“{name}” ({value:.0f} %)" for value, name in (ranked[0], ranked[-1]))
    images = result.confusion.sum(1)
    share, common = 100 * int(images.max()) / max(1, int(images.sum())), result.classes[int(images.argmax())]
    if share > 120 / len(result.classes):  # classes are uneven, so there is a better strategy than guessing
        text = f"Always answering “{common}” would reach {share:.0f} %. "
    else:
        text = f"Guessing would reach {100 / len(result.classes):.2g} %. "
    text += f"It is best at {best} and worst at {worst}"
    mistakes = result.confusion.clone().fill_diagonal_(0)
    count = int(mistakes.max())
    if not count:
        return f"{text}."
    true, answer = divmod(int(mistakes.argmax()), len(result.classes))
    times = "once" if count == 1 else f"{count} times"
    times += ", as often as some others" if int((mistakes == count).sum()) > 1 else ""
    pair = f"“{result.classes[true]}” for “{result.classes[answer]}”"
    return f"{text}; its most frequent mistake is taking {pair}, {times}."


def choose_right(result: Evaluation) -> list[int]:
    """For each of the first classes the correctly classified image of median confidence."""
    confidences, predictions, chosen = result.presence.amax(1), result.predictions, list[int]()
    for label in range(len(result.classes)):
        members = ((result.labels == label) & (predictions == label)).nonzero().flatten()
        if len(members):
            order = confidences[members].argsort()
            chosen.append(int(members[order[len(order) // 2]]))
    return chosen[:MAX_EXAMPLES]


def choose_wrong(result: Evaluation) -> list[int]:
    """The most confident mistakes, at most one per pair of classes."""
    confidences, predictions = result.presence.amax(1), result.predictions
    members = (result.labels != predictions).nonzero().flatten()
    chosen: dict[tuple[int, int], int] = {}
    for index in members[confidences[members].argsort(descending=True)].tolist():
        chosen.setdefault((int(result.labels[index]), int(predictions[index])), index)
    return list(chosen.values())[:MAX_EXAMPLES]


def make_example(page: Page, index: int) -> Example:
    """The true class is always among the bars."""
    result, presence = page.evaluation, page.evaluation.presence[index]
    true, answer = int(result.labels[index]), int(result.scores[index].argmax())
    labels = result.scores[index].argsort(descending=True).tolist()[:MAX_BARS]
    if true not in labels:
        labels[-1] = true
    kinds = {answer: "false", true: "true"}
    return Example(
        image=image_url((page.shown or page.data).images[index].cpu().numpy()),
        true=result.classes[true],
        answer=result.classes[answer],
        bars=[Bar(result.classes[k], float(presence[k]), kinds.get(k, "")) for k in labels],
        maps=page.maps.get(index),
    )
