"""The first run, on the embedded images: what shipped weights say about them, then a model trained from nothing, with a
page about each."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mspcaps.data import facts, load_dataset
from mspcaps.data.catalog import SAMPLE
from mspcaps.evaluation import Evaluation, evaluate
from mspcaps.models import load_model
from mspcaps.models.shipped import Card, pretrained_path, read_card
from mspcaps.report.page import Page, write_page
from mspcaps.training import Epoch, Recipe, Result, Trainer, choose_device, load_recipe, train
from mspcaps.training.trainer import Listener

SHIPPED = "mspcaps_t.fashionmnist"  # trained on the whole of what the embedded images are a part of


@dataclass(frozen=True)
class Quickstart:
    """What the first run leaves."""

    page: Path
    weights: Path
    evaluation: Evaluation


class Recorder:
    """Keeps the loss of every step, or on a GPU of every chunk of steps, with its place in epochs."""

    def __init__(self, then: Listener) -> None:
        self.losses: list[tuple[float, float]] = []
        self.then, self.steps, self.total = then, 0, 0.0  # of the current epoch so far

    def __call__(self, trainer: Trainer) -> None:
        if not self.losses:  # of the epochs before a run was resumed the means are known
            self.losses = means(trainer.history)
        steps, total = trainer.steps_done, trainer.step.loss_sum.item()  # both are zero between epochs
        if steps > self.steps:
            place = trainer.epoch + steps / trainer.plan.steps
            self.losses.append((place, (total - self.total) / (steps - self.steps)))
        self.steps, self.total = steps, total
        self.then(trainer)


def means(history: Sequence[Epoch]) -> list[tuple[float, float]]:
    return [(float(row.epoch), row.loss) for row in history]


def quickstart(
    out: Path,
    device: str | None = None,
    listener: Listener = lambda trainer: None,
    recipe: Recipe | None = None,
    stop: threading.Event | None = None,
) -> Quickstart:
    """Train, evaluate, write the page. `recipe` is recipes/quickstart.toml unless another is given."""
    recorder = Recorder(listener)
    # a ledger of its own: trials do not belong into results/
    result = train(
        recipe or load_recipe("quickstart"), device, out=out, results=out / "results", listener=recorder, stop=stop,
        overwrite=True,
    )  # fmt: skip
    size = result.recipe.img_size
    data = load_dataset(result.recipe.data, "test", size)
    found = evaluate(result.model, data)
    weights = result.folder / "last.safetensors"
    page = out / "index.html"
    write_page(page, describe(result, found, recorder.losses or means(result.history), weights))
    return Quickstart(page.resolve(), weights, found)


def shipped(out: Path, device: str | None = None) -> Quickstart:
    """What weights that come with the package say about the embedded test images: a page in seconds, no training."""
    card = read_card(SHIPPED)
    weights = pretrained_path(card.model, card.dataset)
    found = evaluate(
        load_model(weights).to(choose_device(device)), load_dataset(SAMPLE, "test", card.recipe["img_size"])
    )
    page = out / "shipped.html"
    write_page(page, describe_shipped(card, found))
    return Quickstart(page.resolve(), weights, found)


def describe_shipped(card: Card, found: Evaluation) -> Page:
    known = facts(card.dataset)
    return Page(
        title=f"mspcaps quickstart · {card.name}, shipped weights",
        facts=[
            ("parameters", f"{card.params:,}"),
            ("file", f"{card.bytes / 1e6:.1f} MB"),
            ("trained on", f"{known.train:,} images"),
            ("epochs", f"{card.recipe['epochs']}"),
            (f"on all {card.test_images:,} test images", f"{card.accuracy:.2f} %"),
        ],
        evaluation=found,
        data=load_dataset(SAMPLE, "test", known.native_size),  # shown as they are, not as the model sees them
        history=(),
        step_losses=(),
        commands=[
            ("Classify a picture of your own:", f"mspcaps predict {card.name} PICTURE.png"),
            ("See why the model decides as it does:", f"mspcaps explain {card.name} PICTURE.png"),
            ("See all shipped weights:", "mspcaps models --pretrained"),
        ],
        footer=f"Nothing was trained for this page. {card.provenance} {card.licence}",
    )


def describe(result: Result, found: Evaluation, step_losses: list[tuple[float, float]], weights: Path) -> Page:
    recipe, entry = result.recipe, result.entry
    known = facts(recipe.data)
    seconds, software = entry["seconds"]["train"], entry["software"]
    return Page(
        title=f"mspcaps quickstart · {recipe.model} on the {known.title}",
        facts=[
            ("parameters", f"{entry['params']:,}"),
            ("classes", f"{len(found.classes)}"),
            ("training images", f"{known.train:,}"),
            ("epochs", f"{recipe.epochs}"),
            ("training time", f"{seconds:.0f} s"),
            ("test loss", f"{found.loss:.3f}"),
        ],
        evaluation=found,
        data=load_dataset(recipe.data, "test", known.native_size),  # shown as they are, not as the model sees them
        history=result.history,
        step_losses=step_losses,
        commands=[
            ("Classify a picture of your own:", f"mspcaps predict {weights} PICTURE.png"),
            ("See all models and what they cost:", "mspcaps models"),
            (
                "Train on your own pictures, one folder per class:",
                f"mspcaps train --data FOLDER --model {recipe.model} --img-size 32 --epochs 30 --batch-size 32",
            ),
        ],
        footer=(
            f"Trained on {entry['device']} in {entry['precision']}, seed {recipe.seed}, with mspcaps "
            f"{software['mspcaps']}, PyTorch {software['torch']}. {entry['provenance']} {known.licence}"
        ),
    )
