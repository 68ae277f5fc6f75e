"""What a page and the app show of one picture: everything drawn, for the templates to arrange."""

from dataclasses import dataclass

from markupsafe import Markup

from mspcaps.explanation.analysis import Explanation
from mspcaps.explanation.drawing import (
    colour_key,
    couplings_drawing,
    definitions,
    heat_drawing,
    ink,
    kind_of,
    parts_drawing,
)
from mspcaps.explanation.tree_drawing import tree_drawing
from mspcaps.pages import Bar, render

MAX_BARS = 20


@dataclass(frozen=True)
class Side:
    """One class in the picture."""

    label: int
    name: str
    presence: float
    total: float  # of its heat map
    evidence: tuple[float, float]  # in the picture and in a blank one
    parts: Markup
    heat: Markup
    tree: Markup | None
    couplings: Markup | None
    largest_coupling: float


@dataclass(frozen=True)
class View:
    """One picture and two classes: what it is about, and what stands beside it."""

    unit: str  # length, score or probability: what the bars are
    definitions: Markup  # the picture, for all drawings
    answer: Bar
    runner_up: Bar
    sides: tuple[Side, ...]
    bars: list[Bar]
    left_out: int  # classes without a bar
    cells: dict[str, int]  # coarse, mid, fine: how many pixels a patch is wide
    finest: int  # pixels
    colours: Markup  # the key of the heat maps
    full_colour: float  # the effect on a patch of the finest scale that is drawn in full colour
    voters: int  # capsules that vote for the classes; 0 without couplings
    equal_coupling: float  # of each if the routing made no difference
    in_windows: bool  # whether the votes of finer patches are added to those above them

    @property
    def closeness(self) -> str:
        """How the runner-up stands."""
        share = self.runner_up.value / max(self.answer.value, 1e-9)
        return "close behind" if share > 0.75 else "behind" if share > 0.4 else "far behind"


def choose_classes(found: Explanation, image: int, label: int | str | None) -> tuple[int, int]:
    """What the page is about and what stands beside it: winner and runner-up, or the class asked for and the winner."""
    winner, second = found.ranking[image, :2].tolist()
    asked = found.class_number(image, label)
    return (winner, second) if asked == winner else (asked, winner)


def make_view(found: Explanation, image: int = 0, label: int | str | None = None) -> View:
    """Of one image of the batch; of the predicted class unless `label` names another."""
    labels = choose_classes(found, image, label)
    ranking, presence = found.ranking[image].tolist(), found.presence[image].tolist()
    scales, size = found.scales, (found.images.shape[2], found.images.shape[3])
    maps = {number: found.drawn_map(number)[image].cpu() for number in labels}
    top = max(float(heat.abs().max()) for heat in maps.values())  # both maps have one scale

    state = found.routing[-1] if found.routing else None

    def side(number: int) -> Side:
        name, heat = found.classes[number], maps[number]
        return Side(
            label=number,
            name=name,
            presence=presence[number],
            total=float(found.heat_map(number)[image].sum()),
            evidence=(float(found.evidence[image, number]), float(found.blank_evidence[number])),
            parts=parts_drawing(found.parts(image, number), size, len(scales)),
            heat=heat_drawing(heat, top, f"Heat map of {name}"),
            tree=tree_drawing(found.tree(image, number), name, size, len(scales)) if found.has_tree else None,
            couplings=couplings_drawing(state, image, number) if state else None,
            largest_coupling=float(state.couplings[:, image, number].max()) if state else 0.0,
        )

    capsules = hasattr(found.model, "forward_capsules")
    listed = [*ranking[:MAX_BARS], *(number for number in labels if number not in ranking[:MAX_BARS])]
    kinds = {**dict.fromkeys(labels, "other"), ranking[0]: "true"}
    return View(
        unit="probability" if found.model.scores == "logits" else "length" if capsules else "score",
        definitions=definitions(found.images[image].detach().cpu()),
        answer=Bar(found.classes[ranking[0]], presence[ranking[0]]),
        runner_up=Bar(found.classes[ranking[1]], presence[ranking[1]]),
        sides=tuple(side(number) for number in labels),
        bars=[Bar(found.classes[number], presence[number], kinds.get(number, "")) for number in listed],
        left_out=len(ranking) - len(listed),
        cells={kind_of(i, len(scales)): scales[i].cell for i in reversed(range(len(scales)))},
        finest=scales[0].cell,
        colours=colour_key(),
        full_colour=ink(top, size[0] * size[1]) * scales[0].cell ** 2,
        voters=len(state.couplings) if state else 0,
        equal_coupling=1 / state.couplings.shape[state.axis] if state else 0.0,
        in_windows=found.in_windows,
    )


def render_page(
    found: Explanation, image: int, title: str, model: str, label: int | str | None = None, key: str = ""
) -> str:
    """One self-contained page about one image of the batch; `title` names it, `model` explained it, `key` tells it from
    others."""
    return render("explanation.html", view=make_view(found, image, label), title=title, model=model, key=key)
