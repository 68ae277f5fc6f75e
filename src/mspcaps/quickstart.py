"""The first run, on the embedded images: what shipped weights say about them, then a model trained from nothing, with a
page about each."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from mspcaps.data import facts, load_dataset
from mspcaps.data.catalog import SAMPLE
from mspcaps.evaluation import Evaluation, evaluate
from mspcaps.models import load_model, read_card
from mspcaps.models.shipped import pretrained_path
from mspcaps.report import evaluation_page, run_page, write_page
from mspcaps.report.run import PAGE, figures
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
    recipe, data, page = result.recipe, facts(result.recipe.data), run_page(result)
    page = replace(
        page,
        title=f"mspcaps quickstart · {page.title}",
        shown=load_dataset(recipe.data, "test", data.native_size),  # as they are, not as the model sees them
        commands=[
            *page.commands,
            ("See all models and what they cost:", "mspcaps models"),
            (
                "Train on your own pictures, one folder per class:",
                f"mspcaps train --data FOLDER --model {recipe.model} --img-size 32 --epochs 30 --batch-size 32",
            ),
        ],
    )
    return Quickstart(write_page(out / PAGE, page, result.model), result.weights, page.evaluation)


def shipped(out: Path, device: str | None = None) -> Quickstart:
    """What weights that come with the package say about the embedded test images: a page in seconds, no training."""
    card = read_card(SHIPPED)
    weights, data = pretrained_path(card.model, card.dataset), facts(card.dataset)
    model = load_model(weights).to(choose_device(device))
    evaluation = evaluate(model, images := load_dataset(SAMPLE, "test", model.img_size))
    page = evaluation_page([card.name], model, evaluation, images, SAMPLE)
    page = replace(
        page,
        title=f"mspcaps quickstart · {card.name}, shipped weights",
        shown=load_dataset(SAMPLE, "test", data.native_size),
        facts=[
            ("parameters", f"{card.params:,}"),
            ("file", f"{card.bytes / 1e6:.1f} MB"),
            ("trained on", f"{data.train:,} images"),
            ("epochs", f"{card.recipe['epochs']}"),
            (f"on all {card.test_images:,} test images", f"{card.accuracy:.2f} %"),
            *figures(evaluation),
        ],
        commands=[*page.commands, ("See all shipped weights:", "mspcaps models --pretrained")],
        footer=f"Nothing was trained for this page. {card.provenance} {card.licence}",
    )
    return Quickstart(write_page(out / "shipped.html", page, model), weights, evaluation)
