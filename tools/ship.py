"""Turns a finished run into shipped weights: in half precision, measured from the very file, with a card.

data = mspcaps.load_dataset("cifar10", "test")
ship(Path("runs/cifar10/mspcaps_t/paper-seed0/last.safetensors"),
     Path("results/runs/cifar10/mspcaps_t/paper-seed0.json"), data)

python -m tools.ship RUNS   ships every network of the paper's tables whose weights are small enough, from the folder
                            of its runs: RUNS/cifar10/MODEL/NAME-seedN/last.safetensors
"""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from mspcaps.data import CATALOG, ImageSet, facts, load_dataset
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import Evaluation, evaluate
from mspcaps.files import format_bytes, sha256_of, write_atomically
from mspcaps.models import Model, load_model, save_weights
from mspcaps.models.shipped import SUFFIX, Card, list_pretrained, shipped_name, weights_folder
from mspcaps.training.ledger import device_name, read_run
from mspcaps.training.recipe import stored_recipe
from reproduction.baselines import Baselines, Network
from reproduction.tables import read_report

ROOT = Path(__file__).parent.parent
LARGEST = 8_000_000  # bytes of a family's weights in half precision; larger ones are not shipped
PROBE_PER_CLASS = 10  # few enough for a test to evaluate the largest model on them
MAY_COST = 0.05  # points of accuracy that half precision may cost
SAME_RUN = 0.2  # points by which fp32 may differ from the ledger, which has the accuracy in the training precision


def ship(weights: Path, ledger_entry: Path, data: ImageSet, folder: Path | None = None) -> Card:
    """Write <model>.<dataset>.safetensors and its card into the package, or into `folder`.

    `weights` are those that the run of `ledger_entry` reports (last.safetensors, or best.safetensors if it chose the
    epoch on validation images), or a copy of them in half precision; `data` is the whole test set. Nothing is written
    if half precision costs too much accuracy.
    """
    entry, folder = dataclasses.asdict(read_run(ledger_entry)), folder or weights_folder()
    model = load_model(weights)
    original = check_run(weights, model, ledger_entry, entry)
    check_test_set(data, entry)
    name = shipped_name(entry["model"], entry["dataset"], entry["recipe"])
    if original:
        reference, reference_of = evaluate(model, data).accuracy, "the same in fp32"
    else:
        which = "best" if "validation" in entry["curve"] else "last"
        reference, reference_of = entry["accuracy"][which], f"the run itself, in {entry['precision']}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".part", dir=folder) as place:
        file = Path(place) / f"{name}{SUFFIX}"
        small = halved(model.state_dict(), {key for key, _ in model.named_parameters()})
        save_weights(file, model, small, **model.metadata)
        again = load_model(file)
        evaluation = evaluate(again, data)
        check_cost(evaluation.accuracy, reference, reference_of, original, ledger_entry)
        card = describe(file, again, evaluation, (reference, reference_of), entry, data)
        # Weights first: if the card does not follow, its old sha256 no longer matches and the file is refused.
        os.replace(file, folder / file.name)
        write_atomically(folder / f"{name}.json", card.to_json())
    return card


def check_run(weights: Path, model: Model, ledger_entry: Path, entry: dict[str, Any]) -> bool:
    """Whether the file is the very one of the ledger; of others, only a copy in half precision is accepted."""
    if stored_recipe(model.metadata.get("recipe", {})) != entry["recipe"]:
        raise MspcapsError(f"{weights} was not trained with the recipe in {ledger_entry}")
    if sha256_of(weights) == entry["weights_sha256"]:
        return True
    if torch.float16 not in dtypes(weights):
        raise MspcapsError(f"{weights} is not the file that {ledger_entry} describes: its sha256 differs")
    return False


def dtypes(weights: Path) -> set[torch.dtype]:
    """As stored; a loaded model has everything in fp32."""
    with safe_open(weights, framework="pt") as file:
        return {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - not a dict


def check_test_set(data: ImageSet, entry: dict[str, Any]) -> None:
    dataset = entry["dataset"]
    if dataset not in CATALOG:
        raise MspcapsError(
            f"{dataset} is not in the catalog: only weights trained on data that anyone can get are shipped"
        )
    if data.name != dataset or len(data) != facts(dataset).test:
        raise MspcapsError(
            f"the accuracy on a card must be that of the whole test set of {dataset}, {facts(dataset).test:,} images, "
            f"not of {len(data):,} images of {data.name}"
        )


def check_cost(accuracy: float, reference: float, reference_of: str, original: bool, ledger_entry: Path) -> None:
    if not original and abs(accuracy - reference) > SAME_RUN:
        raise MspcapsError(
            f"these weights reach {accuracy:.2f} %, {ledger_entry} says {reference:.2f} %: they are from another run"
        )
    if reference - accuracy >= MAY_COST:
        raise MspcapsError(
            f"half precision costs {reference - accuracy:.2f} points ({accuracy:.2f} % instead of {reference:.2f} %, "
            f"{reference_of}), but must cost less than {MAY_COST}: nothing was written"
        )


def describe(
    file: Path, model: Model, evaluation: Evaluation, reference: tuple[float, str], entry: dict[str, Any],
    data: ImageSet,
) -> Card:  # fmt: skip
    dataset, recipe = facts(entry["dataset"]), entry["recipe"]
    return Card(
        model=entry["model"],
        dataset=entry["dataset"],
        params=sum(p.numel() for p in model.parameters()),
        bytes=file.stat().st_size,
        sha256=sha256_of(file),
        accuracy=round(evaluation.accuracy, 4),
        test_images=evaluation.n,
        measured_on=device_name(next(model.parameters()).device),
        reference=round(reference[0], 4),
        reference_of=reference[1],
        probe=evaluate(model, probe(data)).predictions.tolist(),
        recipe=recipe,
        ledger=f"results/runs/{entry['dataset']}/{entry['model']}/{recipe['name']}-seed{recipe['seed']}.json",
        run_sha256=entry["weights_sha256"],
        provenance=entry["provenance"],
        licence=f"The weights: MIT, like mspcaps. {dataset.title}, which they were trained on: {dataset.licence}",
    )


def halved(tensors: dict[str, Tensor], parameters: set[str]) -> dict[str, Tensor]:
    """Parameters in half precision; BatchNorm statistics, the normalisation and whatever would overflow in fp32."""
    small = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            small[name] = tensor
            continue
        half = tensor.half()
        small[name] = half if name in parameters and torch.isfinite(half).all() else tensor.float()
    return small


def probe(data: ImageSet, per_class: int = PROBE_PER_CLASS) -> ImageSet:
    """The first images of each class, in the order of the set: a quick check that weights do what their card says.

    The embedded sample of FashionMNIST begins with the same images as the whole set, so it can replace it here.
    """
    first = [(data.labels == label).nonzero().flatten()[:per_class] for label in range(len(data.classes))]
    return data.subset(torch.cat(first).sort().values)


def ship_families(runs: Path, results: Path, data: ImageSet) -> Iterator[tuple[str, str]]:
    """Ships the first seed of every network in the paper's tables whose weights are small enough; yields the outcome
    for each network."""
    for network in Baselines(read_report(results)).networks:
        yield network.model, ship_network(network, runs, results, data)


def ship_network(network: Network, runs: Path, results: Path, data: ImageSet) -> str:
    group, cost = network.cifar10.group, network.cost
    assert cost is not None
    if group is None:
        return "not trained yet"
    run = min(group.runs, key=lambda run: run.seed)  # not the best, which would be chosen on test images
    weights = runs / run.path.with_suffix("") / "last.safetensors"
    if not weights.is_file() and f"{run.model}.{run.dataset}" in list_pretrained():
        return "shipped before"
    if cost.weights_bytes > LARGEST:
        return f"not shipped: {format_bytes(cost.weights_bytes)} in half precision"
    if not weights.is_file():
        return f"not shipped: there is no {weights}"
    try:
        card = ship(weights, results / "runs" / run.path, data)
    except MspcapsError as error:
        return f"not shipped: {error}"
    return f"{card.accuracy:.2f} %, {format_bytes(card.bytes)}, from {card.ledger}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        for name, outcome in ship_families(Path(sys.argv[1]), ROOT / "results", load_dataset("cifar10", "test")):
            print(f"{name}: {outcome}", flush=True)
    except MspcapsError as error:
        sys.exit(f"error: {error}")
