"""The first run, on the embedded images: evaluate shipped weights, then train a model from scratch; a page for each."""

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

SHIPPED = "mspcaps_t.fashionmnist"  # trained on the full data set that the embedded images are part of
TRAIN_YOUR_OWN = "mspcaps train --data FOLDER --model mspcaps_t --img-size 32 --epochs 30 --batch-size 32"


@dataclass(frozen=True)
class Quickstart:
    """What one part of the first run produced."""

    page: Path
    weights: Path
    evaluation: Evaluation


def quickstart(
    out: Path, device: str | None = None, recipe: Recipe | None = None, stop: threading.Event | None = None
) -> Quickstart:
    """Train, evaluate and write the page. The default recipe is recipes/quickstart.toml."""
    recipe = recipe or load_recipe("quickstart")
    # with a ledger of its own: trial runs do not belong in results/
    result = train(recipe, device=device, out=out, results=out / "results", stop=stop, overwrite=True)
    recipe, data, page = result.recipe, facts(result.recipe.data), run_page(result)
    page = replace(
        page,
        title=f"mspcaps quickstart · {page.title}",
        shown=load_dataset(recipe.data, "test", data.native_size),  # as they are, not as the model sees them
        commands=[
            *page.commands,
            ("See all models and what they cost:", "mspcaps models"),
            ("Train on your own pictures, one folder per class:", TRAIN_YOUR_OWN),
        ],
    )
    return Quickstart(write_page(out / PAGE, page, result.model), result.weights, page.evaluation)


def shipped(out: Path, device: str | None = None) -> Quickstart:
    """Evaluate shipped weights on the embedded test images: a page in seconds, without training."""
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
