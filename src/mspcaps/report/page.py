"""One self-contained HTML page about a trained model: no script, no request, it opens from anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mspcaps.data import ImageSet
from mspcaps.evaluation import Evaluation, confidence
from mspcaps.files import write_atomically
from mspcaps.pages import image_url, skeleton, stylesheet
from mspcaps.pages.charts import confusion_chart, line_chart, smoothed
from mspcaps.training import Epoch

SHOWN_LENGTHS = 4  # of the class capsules, per example
MAX_EXAMPLES = 10  # of each kind


@dataclass(frozen=True)
class Page:
    """All that the page tells."""

    title: str  # of the model and data: "MSPCaps-T on ..."
    facts: Sequence[tuple[str, str]]  # name, value
    evaluation: Evaluation
    data: ImageSet  # the images that were evaluated
    history: Sequence[Epoch]  # empty: nothing about how it learned
    step_losses: Sequence[tuple[float, float]]  # (epochs so far, loss) of single steps
    commands: Sequence[tuple[str, str]]  # what it does, the command
    footer: str


def write_page(path: Path, page: Page) -> None:
    write_atomically(path, render(page))


def render(page: Page) -> str:
    found = page.evaluation
    right, wrong = choose_right(found), choose_wrong(found)
    body = "".join(
        [
            header(page),
            curves(page) if page.history else "",
            confusion(found),
            examples("Correct: one image of each class", NOTE_RIGHT, right, page),
            examples("Wrong: the most confident mistakes", NOTE_WRONG, wrong, page) if wrong else "",
            commands(page),
            f"<footer>{escape(page.footer)}</footer>",
        ]
    )
    return skeleton(page.title, stylesheet(), body)


NOTE_RIGHT = (
    "A class capsule is a vector; its length says how strongly the class is present. The lengths need not add up to "
    "one: two can be long when both readings are plausible, and all can be short. For each class, this is the "
    "correctly classified image of median confidence: neither the easiest nor the hardest."
)
NOTE_WRONG = (
    "The images that the model was most confident about but got wrong, one for each pair of true class and answer. "
    "Green is the true class, red the answer."
)


def header(page: Page) -> str:
    found = page.evaluation
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts)
    return (
        f'<header><p class="overline">{escape(page.title)}</p>'
        f"<h1><b>{found.accuracy:.1f} %</b> of {found.n:,} test images classified correctly.</h1>"
        f'<p class="lead">{escape(summary(found)).replace(" %", "&nbsp;%")}</p><dl class="facts">{facts}</dl></header>'
    )


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


def curves(page: Page) -> str:
    epochs = page.history[-1].epoch
    places = [place for place, _ in page.step_losses]
    smooth = smoothed([loss for _, loss in page.step_losses], max(1, len(places) // (10 * epochs)))
    losses = list(zip(places, smooth, strict=True))
    accuracies = [(float(row.epoch), row.accuracy) for row in page.history]
    return (
        "<section><h2>How it learned</h2>"
        '<p class="note">In one epoch the model sees every training image once. The loss is the mean over the last '
        "tenth of an epoch; accuracy is measured after every epoch, on images that are never trained on.</p>"
        '<div class="pair">'
        "<figure><h3>Margin loss on the training images, logarithmic</h3>"
        f"{line_chart(losses, 'Loss', epochs, log=True)}</figure>"
        "<figure><h3>Accuracy on the test images</h3>"
        f"{line_chart(accuracies, 'Accuracy', epochs, '%', dots=True)}</figure></div></section>"
    )


def confusion(found: Evaluation) -> str:
    chart = confusion_chart(found.confusion.tolist(), found.classes)
    numbers = " Numbers count test images; the colour shows their share of the row." if 'class="count' in chart else ""
    return (
        "<section><h2>What it confuses</h2>"
        '<p class="note">Each row is a true class, each column an answer. Green on the diagonal is correct; '
        f"red off the diagonal is a mistake.{numbers} "
        '<span class="swipe">Swipe the drawing sideways to see all of it.</span></p>'
        f'<figure class="scroll">{chart}</figure></section>'
    )


def choose_right(found: Evaluation) -> list[int]:
    """For each class the correctly classified image of median confidence."""
    sure, chosen = confidence(found.scores, True), []
    for label in range(len(found.classes)):
        members = ((found.labels == label) & (found.predictions == label)).nonzero().flatten()
        if len(members):
            order = sure[members].argsort()
            chosen.append(int(members[order[len(order) // 2]]))
    return chosen[:MAX_EXAMPLES]


def choose_wrong(found: Evaluation) -> list[int]:
    """The surest mistakes, at most one per pair of classes."""
    sure = confidence(found.scores, True)
    members = (found.labels != found.predictions).nonzero().flatten()
    chosen: dict[tuple[int, int], int] = {}
    for index in members[sure[members].argsort(descending=True)].tolist():
        chosen.setdefault((int(found.labels[index]), int(found.predictions[index])), index)
    return list(chosen.values())[:MAX_EXAMPLES]


def examples(title: str, note: str, indices: Sequence[int], page: Page) -> str:
    cards = "".join(card(page, index) for index in indices)
    return (
        f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p><div class="cards">{cards}</div></section>'
    )


def card(page: Page, index: int) -> str:
    """One image with the lengths of its longest class capsules; the true one is always among them."""
    found = page.evaluation
    true, answer = int(found.labels[index]), int(found.predictions[index])
    ranked = found.scores[index].argsort(descending=True).tolist()
    shown = ranked[:SHOWN_LENGTHS]
    if true not in shown:
        shown[-1] = true
    rows = []
    for label in shown:
        length = float(found.scores[index, label])
        kind = ' class="true"' if label == true else ' class="false"' if label == answer else ""
        rows.append(
            f'<dt{kind}>{escape(found.classes[label])}</dt><dd class="track"><i{kind} '
            f'style="width:{100 * min(max(length, 0.0), 1.0):.1f}%"></i></dd><dd>{length:.2f}</dd>'
        )
    said = "" if true == answer else f"<span>taken for {escape(found.classes[answer])}</span>"
    picture = image_url(page.data.images[index].cpu().numpy())
    return (
        f'<article class="card"><img alt="{escape(found.classes[true])}" src="{picture}">'
        f'<div><h3>{escape(found.classes[true])}{said}</h3><dl class="lengths">{"".join(rows)}</dl></div></article>'
    )


def commands(page: Page) -> str:
    items = "".join(f"<p>{escape(what)}</p><pre>{escape(line)}</pre>" for what, line in page.commands)
    return f'<section class="next"><h2>Try next</h2><div style="margin-top:16px">{items}</div></section>'
