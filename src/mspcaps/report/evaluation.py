"""One self-contained HTML page about an evaluation: no script, no request, it opens from anywhere.

`write_page` is what quickstart, train and eval share; report/run.py fills it in for a run and for weights.
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
from mspcaps.pages import Bar, image_url, render
from mspcaps.pages.charts import bins_chart, confusion_chart, line_chart
from mspcaps.report.mistakes import Maps, explain_mistakes
from mspcaps.training import Epoch

MAX_BARS = 4  # classes of an example
MAX_EXAMPLES = 10  # of each kind
MAX_MATRIX = 40  # classes in a confusion matrix; of more the most confused pairs are listed
MAX_ROWS = 20  # pairs in that list, and classes in a table of more than MAX_MATRIX: the rest is folded away
MAX_DOTS = 40  # epochs whose points are marked


@dataclass(frozen=True)
class Page:
    """All that the page tells."""

    title: str  # of the model and data: "MSPCaps-T on ..."
    facts: Sequence[tuple[str, str]]  # name, value
    evaluation: Evaluation
    data: ImageSet  # the images that were evaluated
    commands: Sequence[tuple[str, str]]  # what it does, the command
    footer: str
    history: Sequence[Epoch] = ()  # empty: nothing about how it learned
    images_are: str = "test images"
    watched: str = "test images"  # whose accuracy the history has
    notes: Sequence[str] = ()  # files that were not used, in sentences
    shown: ImageSet | None = None  # the same images as people should see them, if not as the model does
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


def write_page(path: Path, page: Page, model: nn.Module | None = None) -> Path:
    """The page, with the surest mistakes explained where the model can be and it takes no longer than seconds."""
    if model is not None:
        maps = explain_mistakes(model, page.data, page.evaluation, choose_wrong(page.evaluation))
        page = replace(page, maps=maps, capsules=hasattr(unwrapped(model), "forward_capsules"))
    write_atomically(path, render_page(page))
    return path.resolve()


def render_page(page: Page) -> str:
    found = page.evaluation
    matrix = len(found.classes) <= MAX_MATRIX
    confusion = Markup(confusion_chart(found.confusion.tolist(), found.classes)) if matrix else ""
    wrong = [make_example(page, index) for index in choose_wrong(found)]
    return render(
        "evaluation.html", title=page.title, page=page, found=found, summary=summary(found), curves=curves(page),
        confusion=confusion, numbers='class="count' in confusion, pairs=[] if matrix else confused_pairs(found),
        classes=class_rows(found), means=mean_row(found), most=len(found.classes) if matrix else MAX_ROWS,
        calibration=calibration_charts(found),
        right=[make_example(page, index) for index in choose_right(found)],
        explained=[one for one in wrong if one.maps], wrong=[one for one in wrong if not one.maps],
        unit="probability" if found.kind == "logits" else "length" if page.capsules else "score",
    )  # fmt: skip


def curves(page: Page) -> list[tuple[str, Markup]]:
    """(what it shows, chart) of how the model learned."""
    if not page.history:
        return []
    charts = [
        ("Loss on the training images, logarithmic", epoch_chart("Loss", [row.loss for row in page.history], log=True)),
        (f"Accuracy on the {page.watched}", epoch_chart("Accuracy", [row.accuracy for row in page.history], "%")),
    ]
    attacked = [row.validation for row in page.history if row.validation is not None]
    if attacked and attacked != [row.accuracy for row in page.history]:
        charts.append(("Accuracy on validation images under attack", epoch_chart("Robust accuracy", attacked, "%")))
    return charts


def epoch_chart(label: str, values: Sequence[float], unit: str = "", log: bool = False) -> Markup:
    points = [(float(epoch), value) for epoch, value in enumerate(values, start=1)]
    return Markup(line_chart(points, label, len(values), unit, dots=len(values) <= MAX_DOTS, log=log))


def calibration_charts(found: Evaluation) -> list[tuple[str, Markup]]:
    bins = found.calibration
    right = [100 * value for value in bins.accuracy.tolist()]
    shares = (100 * bins.images / found.n).tolist()
    return [
        ("Right answers at each confidence", Markup(bins_chart(right, "Accuracy by confidence", diagonal=True))),
        ("Images at each confidence", Markup(bins_chart(shares, "Share of the images by confidence"))),
    ]


def class_rows(found: Evaluation) -> list[tuple[str, ...]]:
    """Class, images, precision, recall, F1, AUC; of many classes those with the worst F1 come first."""
    images, auc = found.confusion.sum(1).tolist(), found.auc.tolist()
    columns = [values.tolist() for values in found.class_metrics]
    order, f1 = list(range(len(found.classes))), columns[2]
    if len(order) > MAX_MATRIX:
        order.sort(key=lambda k: f1[k] if f1[k] == f1[k] else math.inf)
    return [
        (found.classes[k], f"{images[k]:,}", *(number(column[k], 1) for column in columns), number(auc[k], 3))
        for k in order
    ]


def as_document(found: Evaluation) -> dict[str, Any]:
    """The figures for programs, under keys that stay: docs/formats.md says what they are."""
    measures, auc = found.class_metrics, found.auc
    return {
        "images": found.n,
        "flip": found.flip,
        "accuracy": found.accuracy,
        **{measure: values.nanmean().item() for measure, values in measures._asdict().items()},
        "auc": auc.nanmean().item(),
        "loss": found.loss,
        "confidence": found.confidence,
        "calibration_error": found.ece,
        "classes": [
            {
                "class": name, "images": int(found.confusion[k].sum()),
                **{measure: values[k].item() for measure, values in measures._asdict().items()}, "auc": auc[k].item(),
            }
            for k, name in enumerate(found.classes)
        ],
        "confusion": found.confusion.tolist(),
        "routing": [asdict(block) | {"collapsed": block.collapsed} for block in found.health],
    }  # fmt: skip


def mean_row(found: Evaluation) -> tuple[str, ...]:
    """The mean over the classes that have the measure."""
    means = [number(values.nanmean().item(), 1) for values in found.class_metrics]
    return ("mean", "", *means, number(found.auc.nanmean().item(), 3))


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def confused_pairs(found: Evaluation) -> list[tuple[str, ...]]:
    """True class, answer, how often, and its share of the class: the most frequent mistakes."""
    mistakes = found.confusion.clone().fill_diagonal_(0)
    counts, places = mistakes.flatten().sort(descending=True, stable=True)
    totals, k = found.confusion.sum(1), len(found.classes)
    rows: list[tuple[str, ...]] = []
    for count, place in zip(counts[:MAX_ROWS].tolist(), places[:MAX_ROWS].tolist(), strict=True):
        true, answer = divmod(place, k)
        if count:
            share = f"{100 * count / int(totals[true]):.0f} %"
            rows.append((found.classes[true], found.classes[answer], f"{count:,}", share))
    return rows


def summary(found: Evaluation) -> str:
    """The best and the worst class, and the most frequent mistake, in words."""
    ranked = sorted((value, name) for value, name in zip(found.per_class, found.classes, strict=True) if value == value)
    worst, best = (f"“{name}” ({value:.0f} %)" for value, name in (ranked[0], ranked[-1]))
    images = found.confusion.sum(1)
    share, common = 100 * int(images.max()) / max(1, int(images.sum())), found.classes[int(images.argmax())]
    if share > 120 / len(found.classes):  # then guessing evenly is a poor guess
        text = f"Always answering “{common}” would reach {share:.0f} %. "
    else:
        text = f"Guessing would reach {100 / len(found.classes):.2g} %. "
    text += f"It is best at {best} and worst at {worst}"
    mistakes = found.confusion.clone().fill_diagonal_(0)
    count = int(mistakes.max())
    if not count:
        return f"{text}."
    true, answer = divmod(int(mistakes.argmax()), len(found.classes))
    times = "once" if count == 1 else f"{count} times"
    times += ", as often as some others" if int((mistakes == count).sum()) > 1 else ""
    taken = f"“{found.classes[true]}” for “{found.classes[answer]}”"
    return f"{text}; its most frequent mistake is taking {taken}, {times}."


def choose_right(found: Evaluation) -> list[int]:
    """For each of the first classes the correctly classified image of median confidence."""
    sure, predictions, chosen = found.presence.amax(1), found.predictions, list[int]()
    for label in range(len(found.classes)):
        members = ((found.labels == label) & (predictions == label)).nonzero().flatten()
        if len(members):
            order = sure[members].argsort()
            chosen.append(int(members[order[len(order) // 2]]))
    return chosen[:MAX_EXAMPLES]


def choose_wrong(found: Evaluation) -> list[int]:
    """The surest mistakes, at most one per pair of classes."""
    sure, predictions = found.presence.amax(1), found.predictions
    members = (found.labels != predictions).nonzero().flatten()
    chosen: dict[tuple[int, int], int] = {}
    for index in members[sure[members].argsort(descending=True)].tolist():
        chosen.setdefault((int(found.labels[index]), int(predictions[index])), index)
    return list(chosen.values())[:MAX_EXAMPLES]


def make_example(page: Page, index: int) -> Example:
    """The true class is always among the bars."""
    found, presence = page.evaluation, page.evaluation.presence[index]
    true, answer = int(found.labels[index]), int(found.scores[index].argmax())
    labels = found.scores[index].argsort(descending=True).tolist()[:MAX_BARS]
    if true not in labels:
        labels[-1] = true
    kinds = {answer: "false", true: "true"}
    return Example(
        image=image_url((page.shown or page.data).images[index].cpu().numpy()),
        true=found.classes[true],
        answer=found.classes[answer],
        bars=[Bar(found.classes[k], float(presence[k]), kinds.get(k, "")) for k in labels],
        maps=page.maps.get(index),
    )
