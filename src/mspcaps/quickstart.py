"""The first run, on the embedded images: what shipped weights say about them, then a model trained from nothing, with a
page about each."""

import threading
from dataclasses import dataclass
from pathlib import Path

from mspcaps.data import facts, load_dataset
from mspcaps.data.catalog import SAMPLE
from mspcaps.evaluation import Evaluation, evaluate
from mspcaps.evaluation.page import Page, render_page
from mspcaps.files import write_atomically
from mspcaps.models import load_model, read_card
from mspcaps.models.shipped import pretrained_path
from mspcaps.training import Recipe, choose_device, load_recipe, train

SHIPPED = "mspcaps_t.fashionmnist"  # trained on the whole of what the embedded images are a part of


@dataclass(frozen=True)
class Quickstart:
    """What the first run leaves."""

    page: Path
    weights: Path
    evaluation: Evaluation


def quickstart(
    out: Path, device: str | None = None, recipe: Recipe | None = None, stop: threading.Event | None = None
) -> Quickstart:
    """Train, evaluate, write the page. `recipe` is recipes/quickstart.toml unless another is given."""
    # a ledger of its own: trials do not belong into results/
    recipe = recipe or load_recipe("quickstart")
    result = train(recipe, device=device, out=out, results=out / "results", stop=stop, overwrite=True)
    recipe, run, data = result.recipe, result.run, facts(result.recipe.data)
    evaluation = evaluate(result.model, load_dataset(recipe.data, "test", recipe.img_size))
    page = Page(
        title=f"mspcaps quickstart · {recipe.model} on the {data.title}",
        facts=[
            ("parameters", f"{run.params:,}"),
            ("classes", f"{len(evaluation.classes)}"),
            ("training images", f"{data.train:,}"),
            ("epochs", f"{recipe.epochs}"),
            ("training time", f"{run.seconds.train:.0f} s"),
            ("test loss", f"{evaluation.loss:.3f}"),
        ],
        evaluation=evaluation,
        data=load_dataset(recipe.data, "test", data.native_size),  # shown as they are, not as the model sees them
        losses=[row.loss for row in result.history],
        accuracies=[row.accuracy for row in result.history],
        commands=[
            ("Classify a picture of your own:", f"mspcaps predict {result.weights} PICTURE.png"),
            ("See all models and what they cost:", "mspcaps models"),
            (
                "Train on your own pictures, one folder per class:",
                f"mspcaps train --data FOLDER --model {recipe.model} --img-size 32 --epochs 30 --batch-size 32",
            ),
        ],
        footer=f"Trained on {run.device} in {run.precision}, seed {recipe.seed}, with mspcaps "
        f"{run.software['mspcaps']}, PyTorch {run.software['torch']}. {run.provenance} {data.licence}",
    )
    return write_page(out / "index.html", page, result.weights)


def shipped(out: Path, device: str | None = None) -> Quickstart:
    """What weights that come with the package say about the embedded test images: a page in seconds, no training."""
    card = read_card(SHIPPED)
    weights, data = pretrained_path(card.model, card.dataset), facts(card.dataset)
    model = load_model(weights).to(choose_device(device))
    page = Page(
        title=f"mspcaps quickstart · {card.name}, shipped weights",
        facts=[
            ("parameters", f"{card.params:,}"),
            ("file", f"{card.bytes / 1e6:.1f} MB"),
            ("trained on", f"{data.train:,} images"),
            ("epochs", f"{card.recipe['epochs']}"),
            (f"on all {card.test_images:,} test images", f"{card.accuracy:.2f} %"),
        ],
        evaluation=evaluate(model, load_dataset(SAMPLE, "test", model.img_size)),
        data=load_dataset(SAMPLE, "test", data.native_size),
        commands=[
            ("Classify a picture of your own:", f"mspcaps predict {card.name} PICTURE.png"),
            ("See why the model decides as it does:", f"mspcaps explain {card.name} PICTURE.png"),
            ("See all shipped weights:", "mspcaps models --pretrained"),
        ],
        footer=f"Nothing was trained for this page. {card.provenance} {card.licence}",
    )
    return write_page(out / "shipped.html", page, weights)


def write_page(path: Path, page: Page, weights: Path) -> Quickstart:
    write_atomically(path, render_page(page))
    return Quickstart(path.resolve(), weights, page.evaluation)
