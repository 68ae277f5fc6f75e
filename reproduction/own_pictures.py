"""The tables of docs/own_data.md: what the recipe for one's own images reaches on real pictures, and how it was chosen.

Everything is read from the ledger results/pictures, which `studies/own_pictures.py` fills.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mspcaps.report.runs import Group, read_groups
from mspcaps.training import load_recipe

FOLDER = "pictures"  # of the ledger below results/, and the name of the recipe
COMPARED = {  # model and initial weights
    ("mspcaps_t", ""): "MSPCaps-T", ("resnet20", ""): "ResNet-20",
    ("mspcaps_t", "mspcaps_t.cifar10"): "MSPCaps-T from `mspcaps_t.cifar10`",
}  # fmt: skip
Rows = list[tuple[str, ...]]
Setting = tuple[int, float, bool]  # epochs, peak learning rate, flips


def picture_values(results: Path) -> dict[str, Any]:
    """Of the template; without figures until something was measured."""
    folder, own = results / FOLDER, load_recipe(FOLDER).to_dict()
    groups = read_groups(folder) if (folder / "runs").is_dir() else []
    chosen = setting_of(own)
    tested = [group for group in groups if not group.first.recipe["held_out"] and setting(group) == chosen]
    choice = [group for group in groups if group.first.recipe["held_out"]]
    sets = sorted({group.first.dataset for group in groups})
    ranked = rank(choice, sets)
    return {
        "recipe": own,
        "rows": [set_row(name, [group for group in tested if group.first.dataset == name]) for name in sets if tested],
        "heads": ("pictures", "trained on", "size", *COMPARED.values(), "time of one run"),
        "choice_rows": [
            (f"{epochs}", f"{lr:g}", "yes" if flips else "no", *(f"{value:.2f}" for value in values))
            for (epochs, lr, flips), values in ranked.items()
        ],
        "choice_heads": ("epochs", "peak learning rate", "flips", *sets, "mean"),
        "behind": next(iter(ranked.values()))[-1] - ranked[chosen][-1] if chosen in ranked else 0.0,  # the first
    }


def setting_of(recipe: Mapping[str, Any]) -> Setting:
    return recipe["epochs"], recipe["lr"], bool(recipe["augment"] and recipe["augment"]["flip"])


def setting(group: Group) -> Setting:
    return setting_of(group.first.recipe)


def set_row(name: str, groups: Sequence[Group]) -> tuple[str, ...]:
    """One set: what every way of training reaches on its test pictures."""
    found = {(group.first.model, group.first.recipe["init"]): group for group in groups}
    cells = [f"{found[key].last} (n = {found[key].last.n})" if key in found else "–" for key in COMPARED]
    ours = found.get(("mspcaps_t", ""))
    about = (f"{ours.first.images:,}", f"{ours.first.recipe['img_size']}", *cells, ours.training_time) if ours else (
        "–", "–", *cells, "–"
    )  # fmt: skip
    return (name, *about)


def rank(groups: Sequence[Group], sets: Sequence[str]) -> dict[Setting, list[float]]:
    """Settings and their accuracies on held-out training pictures of every set, then their mean, by which they are in
    order; only those that every set was trained with."""
    found: dict[Setting, dict[str, float]] = {}
    for group in groups:
        found.setdefault(setting(group), {})[group.first.dataset] = group.last.mean
    whole = {key: [by_set[name] for name in sets] for key, by_set in found.items() if len(by_set) == len(sets)}
    means = {key: [*values, statistics.fmean(values)] for key, values in whole.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1][-1]))
