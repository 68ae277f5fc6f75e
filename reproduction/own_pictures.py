"""The tables of docs/own_data.md: the recipe for one's own images on real pictures, and how it was chosen.

Everything is read from the ledger results/pictures, which `studies/own_pictures.py` fills.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mspcaps.files import format_bytes, read_form
from mspcaps.report.runs import Group, read_groups
from mspcaps.training import load_recipe
from reproduction.study_tables import NONE, with_n
from reproduction.tables import binomial_error

FOLDER = "pictures"  # of the ledger below results/, and the name of the recipe
COMPARED = {  # model and initial weights
    ("mspcaps_t", ""): "MSPCaps-T", ("lacaps_t", ""): "LaCaps-T", ("resnet20", ""): "ResNet-20",
    ("mspcaps_t", "mspcaps_t.cifar10"): "MSPCaps-T from `mspcaps_t.cifar10`",
}  # fmt: skip
WEIGHED = ("mspcaps_t", "resnet20")  # models whose memory is measured
MEMORY = "memory.json"  # written by the study, beside the ledger
_MEMORY = {
    "environment": {"device": str}, "runs": [{"data": str, "img_size": int, "model": str, "peak_bytes": int}]
}  # fmt: skip
Setting = tuple[int, float, bool]  # epochs, peak learning rate, flips


def picture_values(results: Path) -> dict[str, Any]:
    """What the template is filled with; without rows until something was measured."""
    folder, own = results / FOLDER, load_recipe(FOLDER).to_dict()
    groups = read_groups(folder) if (folder / "runs").is_dir() else []
    chosen = setting_of(own)
    measured = [group for group in groups if not group.first.recipe["held_out"]]
    tested = [group for group in measured if setting(group) == chosen]
    choice = [group for group in groups if group.first.recipe["held_out"]]
    sets = sorted({group.first.dataset for group in groups})
    ranked, peaks = rank(choice, sets), read_peaks(folder / MEMORY)
    return {
        "single": any(group.last.n == 1 for group in tested),
        "recipe": own,
        "rows": [
            set_row(name, size, [group for group in tested if task_of(group) == (name, size)], peaks)
            for name, size in sorted(set(map(task_of, tested)))
        ],
        "heads": (
            "pictures", "trained on", "size", *COMPARED.values(), "time of one run, MSPCaps-T",
            "memory, MSPCaps-T / ResNet-20",
        ),
        "choice_rows": [
            (f"{epochs}", f"{lr:g}", "yes" if flips else "no", *(f"{value:.2f}" for value in values))
            for (epochs, lr, flips), values in ranked.items()
        ],
        "earlier": sorted({f"{group.first.recipe['lr']:g}" for group in measured if setting(group) != chosen}),
        "choice_sizes": sorted({group.first.recipe["img_size"] for group in choice}),
        "errors": sorted(binomial_error(group.last.mean, group.first.recipe["held_out"]) for group in choice),
        "choice_heads": ("epochs", "peak learning rate", "flips", *sets, "mean"),
        "behind": next(iter(ranked.values()))[-1] - ranked[chosen][-1] if chosen in ranked else 0.0,
    }  # fmt: skip


def read_peaks(path: Path) -> dict[tuple[str, int, str], int]:
    """-> set, size and model: the most bytes that training took."""
    runs = read_form(path, _MEMORY, "a measurement of memory")["runs"] if path.is_file() else []
    return {(run["data"], run["img_size"], run["model"]): run["peak_bytes"] for run in runs}


def setting_of(recipe: Mapping[str, Any]) -> Setting:
    return recipe["epochs"], recipe["lr"], bool(recipe["augment"] and recipe["augment"]["flip"])


def setting(group: Group) -> Setting:
    return setting_of(group.first.recipe)


def task_of(group: Group) -> tuple[str, int]:
    """The set and the size of its images."""
    return group.first.dataset, group.first.recipe["img_size"]


def set_row(
    name: str, size: int, groups: Sequence[Group], peaks: Mapping[tuple[str, int, str], int]
) -> tuple[str, ...]:
    """One set at one size: the accuracy of every way of training on its test pictures, and what training costs."""
    by_way = {(group.first.model, group.first.recipe["init"]): group for group in groups}
    cells = [with_n(by_way[way].last) if way in by_way else NONE for way in COMPARED]
    ours = by_way.get(("mspcaps_t", ""))
    memory = [format_bytes(peaks[name, size, model]) for model in WEIGHED if (name, size, model) in peaks]
    time = ours.training_time if ours else NONE
    return (name, f"{groups[0].first.images:,}", f"{size}", *cells, time, " / ".join(memory) or NONE)


def rank(groups: Sequence[Group], sets: Sequence[str]) -> dict[Setting, list[float]]:
    """Settings that every set was trained with: their accuracies on held-out training pictures of each set, then the
    mean, the best mean first."""
    accuracies: dict[Setting, dict[str, float]] = {}
    for group in groups:
        accuracies.setdefault(setting(group), {})[group.first.dataset] = group.last.mean
    whole = {key: [by_set[name] for name in sets] for key, by_set in accuracies.items() if len(by_set) == len(sets)}
    means = {key: [*values, statistics.fmean(values)] for key, values in whole.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1][-1]))
