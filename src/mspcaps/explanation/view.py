"""What a page and the app show of one picture: the drawings and values that the templates arrange."""

from dataclasses import dataclass

from markupsafe import Markup

from mspcaps.explanation.analysis import Explanation
from mspcaps.explanation.drawing import (
    colour_key,
    couplings_drawing,
    definitions,
    full_colour,
    heat_drawing,
    kind_of,
    parts_drawing,
)
from mspcaps.explanation.tree_drawing import tree_drawing
from mspcaps.pages import Bar, render, score_unit

MAX_BARS = 20


@dataclass(frozen=True)
class Side:
    """What the page shows of one class."""

    label: int
    name: str
    presence: float
    total: float  # of its heat map
    evidence: tuple[float, float]  # in the picture and in a blank image
    parts: Markup
    heat: Markup
    tree: Markup | None
    couplings: Markup | None
    largest_coupling: float


@dataclass(frozen=True)
class View:
    """One picture and two classes: the one explained, and the one next to it for comparison."""

    unit: str  # of the bars: length, score or probability
    definitions: Markup  # the picture, which all drawings use
    answer: Bar
    runner_up: Bar
    sides: tuple[Side, ...]
    bars: list[Bar]
    left_out: int  # classes without a bar
    cells: dict[str, int]  # coarse, mid, fine -> width of a patch in pixels
    finest: int  # width of the finest patch in pixels
    colours: Markup  # the key of the heat maps
    full_colour: float  # effect of a patch of the finest scale in full colour
    voters: int  # capsules that vote for the classes; 0 without couplings
    equal_coupling: float  # coupling of each voter if the routing made no difference
    in_windows: bool  # whether the votes of finer patches are added to those above them

    @property
    def closeness(self) -> str:
        """How far behind the runner-up is."""
        share = self.runner_up.value / max(self.answer.value, 1e-9)
        return "close behind" if share > 0.75 else "behind" if share > 0.4 else "far behind"


def choose_classes(explanation: Explanation, image: int, label: int | str | None) -> tuple[int, int]:
    """The class to explain and the one next to it: winner and runner-up, or the class asked for and the winner."""
    winner, second = explanation.ranking[image, :2].tolist()
    asked = explanation.class_number(image, label)
    return (winner, second) if asked == winner else (asked, winner)


def make_view(explanation: Explanation, image: int = 0, label: int | str | None = None) -> View:
    """For one image of the batch, and its predicted class unless `label` names another."""
    labels = choose_classes(explanation, image, label)
    ranking, presence = explanation.ranking[image].tolist(), explanation.presence[image].tolist()
    scales, size = explanation.scales, (explanation.images.shape[2], explanation.images.shape[3])
    count = len(scales)
    maps = {number: explanation.drawn_map(number)[image].cpu() for number in labels}
    largest = max(float(heat.abs().max()) for heat in maps.values())  # both maps share one scale
    state = explanation.routing[-1] if explanation.routing else None

    def side(number: int) -> Side:
        name, heat = explanation.classes[number], maps[number]
        return Side(
            label=number,
            name=name,
            presence=presence[number],
            total=float(explanation.heat_map(number)[image].sum()),
            evidence=(float(explanation.evidence[image, number]), float(explanation.blank_evidence[number])),
            parts=parts_drawing(explanation.parts(image, number), size, count),
            heat=heat_drawing(heat, largest, f"Heat map of {name}"),
            tree=tree_drawing(explanation.tree(image, number), name, size, count) if explanation.has_tree else None,
            couplings=couplings_drawing(state, image, number) if state else None,
            largest_coupling=float(state.couplings[:, image, number].max()) if state else 0.0,
        )

    listed = [*ranking[:MAX_BARS], *(number for number in labels if number not in ranking[:MAX_BARS])]
    kinds = {**dict.fromkeys(labels, "other"), ranking[0]: "true"}
    return View(
        unit=score_unit(explanation.model.scores, hasattr(explanation.model, "forward_capsules")),
        definitions=definitions(explanation.images[image].detach().cpu()),
        answer=Bar(explanation.classes[ranking[0]], presence[ranking[0]]),
        runner_up=Bar(explanation.classes[ranking[1]], presence[ranking[1]]),
        sides=tuple(side(number) for number in labels),
        bars=[Bar(explanation.classes[number], presence[number], kinds.get(number, "")) for number in listed],
        left_out=len(ranking) - len(listed),
        cells={kind_of(i, count): scales[i].cell for i in reversed(range(count))},
        finest=scales[0].cell,
        colours=colour_key(),
        full_colour=full_colour(largest, size[0] * size[1]) * scales[0].cell ** 2,
        voters=len(state.couplings) if state else 0,
        equal_coupling=state.equal_coupling if state else 0.0,
        in_windows=explanation.in_windows,
    )


def render_page(
    explanation: Explanation, image: int, title: str, model: str, label: int | str | None = None, key: str = ""
) -> str:
    """A self-contained page about one image of the batch; `title` names the image, `key` identifies the page."""
    return render("explanation.html", view=make_view(explanation, image, label), title=title, model=model, key=key)
