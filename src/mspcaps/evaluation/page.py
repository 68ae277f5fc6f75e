"""One self-contained HTML page about an evaluation: no script, no request, it opens from anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mspcaps.data import ImageSet
from mspcaps.evaluation.accuracy import Evaluation, confidence
from mspcaps.pages import Bar, image_url, render
from mspcaps.pages.charts import confusion_chart, line_chart

MAX_BARS = 4  # class capsules of an example
MAX_EXAMPLES = 10  # of each kind


@dataclass(frozen=True)
class Page:
    """All that the page tells of a model whose scores are lengths of capsules."""

    title: str  # of the model and data: "MSPCaps-T on ..."
    facts: Sequence[tuple[str, str]]  # name, value
    evaluation: Evaluation
    data: ImageSet  # the images that were evaluated
    commands: Sequence[tuple[str, str]]  # what it does, the command
    footer: str
    losses: Sequence[float] = ()  # on the training images, of each epoch; empty: nothing about how it learned
    accuracies: Sequence[float] = ()  # on the test images, percent, after each epoch


@dataclass(frozen=True)
class Example:
    """One image with its true class, the answer, and the lengths of its longest class capsules."""

    image: str  # data URL
    true: str
    answer: str
    bars: list[Bar]


def render_page(page: Page) -> str:
    found = page.evaluation
    curves: tuple[tuple[str, Markup], ...] = ()
    if page.losses:
        curves = (
            ("Margin loss on the training images, logarithmic", epoch_chart("Loss", page.losses, log=True)),
            ("Accuracy on the test images", epoch_chart("Accuracy", page.accuracies, "%")),
        )
    confusion = Markup(confusion_chart(found.confusion.tolist(), found.classes))
    return render(
        "evaluation.html", title=page.title, page=page, found=found, summary=summary(found), curves=curves,
        confusion=confusion, numbers='class="count' in confusion,
        right=[make_example(page, index) for index in choose_right(found)],
        wrong=[make_example(page, index) for index in choose_wrong(found)],
    )  # fmt: skip


def epoch_chart(label: str, values: Sequence[float], unit: str = "", log: bool = False) -> Markup:
    points = [(float(epoch), value) for epoch, value in enumerate(values, start=1)]
    return Markup(line_chart(points, label, len(values), unit, dots=True, log=log))


def summary(found: Evaluation) -> str:
    """The best and the worst class, and the most frequent mistake, in words."""
    ranked = sorted((value, name) for value, name in zip(found.per_class, found.classes, strict=True) if value == value)
    text = f"Guessing would reach {100 / len(found.classes):.0f} %. "
    text += (
        f"It is best at “{ranked[-1][1]}” ({ranked[-1][0]:.0f} %) and worst at “{ranked[0][1]}” ({ranked[0][0]:.0f} %)"
    )
    mistakes = found.confusion.clone().fill_diagonal_(0)
    count = int(mistakes.max())
    if not count:
        return f"{text}."
    true, answer = divmod(int(mistakes.argmax()), len(found.classes))
    times = "once" if count == 1 else f"{count} times"
    times += ", as often as some others" if int((mistakes == count).sum()) > 1 else ""
    return (
        f"{text}; its most frequent mistake is taking “{found.classes[true]}” for “{found.classes[answer]}”, {times}."
    )


def choose_right(found: Evaluation) -> list[int]:
    """For each class the correctly classified image of median confidence."""
    sure, chosen = confidence(found.scores, "lengths"), []
    for label in range(len(found.classes)):
        members = ((found.labels == label) & (found.predictions == label)).nonzero().flatten()
        if len(members):
            order = sure[members].argsort()
            chosen.append(int(members[order[len(order) // 2]]))
    return chosen[:MAX_EXAMPLES]


def choose_wrong(found: Evaluation) -> list[int]:
    """The surest mistakes, at most one per pair of classes."""
    sure = confidence(found.scores, "lengths")
    members = (found.labels != found.predictions).nonzero().flatten()
    chosen: dict[tuple[int, int], int] = {}
    for index in members[sure[members].argsort(descending=True)].tolist():
        chosen.setdefault((int(found.labels[index]), int(found.predictions[index])), index)
    return list(chosen.values())[:MAX_EXAMPLES]


def make_example(page: Page, index: int) -> Example:
    """The true class is always among the bars."""
    found = page.evaluation
    true, answer = int(found.labels[index]), int(found.predictions[index])
    labels = found.scores[index].argsort(descending=True).tolist()[:MAX_BARS]
    if true not in labels:
        labels[-1] = true
    kinds = {answer: "false", true: "true"}
    return Example(
        image=image_url(page.data.images[index].cpu().numpy()),
        true=found.classes[true],
        answer=found.classes[answer],
        bars=[Bar(found.classes[k], float(found.scores[index, k]), kinds.get(k, "")) for k in labels],
    )
