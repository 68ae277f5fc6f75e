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
    tested = [group for group in groups if not group.first.recipe["held_out"] and setting(group) == setting_of(own)]
    choice = [group for group in groups if group.first.recipe["held_out"]]
    sets = sorted({group.first.dataset for group in groups})
    ranked = rank(choice, sets)
    return {
        "recipe": own,
        "rows": [set_row(name, [group for group in tested if group.first.dataset == name]) for name in sets if tested],
        "heads": ("pictures", "trained on", "size", *COMPARED.values(), "time of one run"),
        "choice_rows": [row for _, row in ranked],
        "choice_heads": ("epochs", "peak learning rate", "flips", *sets, "mean"),
        "is_best": bool(ranked) and ranked[0][0] == setting_of(own),
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


def rank(groups: Sequence[Group], sets: Sequence[str]) -> list[tuple[Setting, tuple[str, ...]]]:
    """Settings and their accuracy on held-out training pictures, the best on average first; only those that every set
    was trained with."""
    found: dict[Setting, dict[str, Group]] = {}
    for group in groups:
        found.setdefault(setting(group), {})[group.first.dataset] = group
    whole = {
        key: [by_set[name].last.mean for name in sets] for key, by_set in found.items() if len(by_set) == len(sets)
    }
    order = sorted(whole, key=lambda key: -statistics.fmean(whole[key]))
    return [
        (
            key,
            (f"{key[0]}", f"{key[1]:g}", "yes" if key[2] else "no", *(f"{value:.2f}" for value in whole[key]),
             f"{statistics.fmean(whole[key]):.2f}"),
        )
        for key in order
    ]  # fmt: skip
