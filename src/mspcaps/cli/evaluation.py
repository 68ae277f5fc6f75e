"""`mspcaps eval` and `mspcaps attack`: measure trained weights on images as they are, changed or attacked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.common import (
    CsvSwitch,
    Format,
    JsonSwitch,
    Maybe,
    SkipBroken,
    Switch,
    choose_format,
    is_onnx,
    note,
    note_skipped,
    print_document,
    show_page,
    show_progress,
    table,
)
from mspcaps.errors import MspcapsError, silent
from mspcaps.files import check_writable
from mspcaps.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from mspcaps.data import ImageSet
    from mspcaps.evaluation import Evaluation
    from mspcaps.evaluation.health import BlockHealth


def evaluate(
    weights: Annotated[Positional[list[str]], tyro.conf.arg(help_behavior_hint="")],
    data: Maybe[str] = None,
    split: Literal["train", "val", "test", "all"] = "test",
    batch_size: int = 500,
    device: Maybe[str] = None,
    images: Maybe[int] = None,
    flip: Switch = False,
    shifts: Switch = False,
    results: Path = Path("results"),
    page: bool = True,
    out: Path = Path("runs/eval"),
    json: JsonSwitch = False,
    csv: CsvSwitch = False,
    skip_broken: SkipBroken = False,
) -> None:
    """Measure trained weights: accuracy, precision, recall, F1 and AUC of every class, calibration, routing health.

    Confidence is the length of the longest class capsule (softmax for models without capsules). The calibration error
    is the mean gap between confidence and accuracy over 15 bins. Several weights are measured one by one and as an
    ensemble that averages their scores.

    Args:
        weights: A .safetensors file, a name listed by `mspcaps models --pretrained`, or an exported .onnx file; or
            several of them.
        data: Data set name, or path of a folder or .npz file; default: the data the (first) weights were trained on.
        split: Which split to use.
        batch_size: Images per batch; large images come in smaller batches.
        device: cpu, cuda or mps; default: the GPU if there is one. ONNX files run on the CPU.
        images: Measure on this many images only, chosen at random but always the same; default: all.
        flip: Average the scores of every image with those of its mirror image; the result says so.
        shifts: Measure the accuracy on changed images instead: rotation, shift, scale, shear, noise, blur, occlusion
            and contrast, each at five strengths.
        results: With --shifts the figures are written to robustness/*.json in this folder, with a chart beside them.
        page: Whether to write a result page, which also explains the most confident mistakes.
        out: Folder for the page, with a subfolder per weights file.
    """
    from mspcaps.evaluation import evaluate as run
    from mspcaps.evaluation import evaluate_ensemble, load_for
    from mspcaps.evaluation.load import trained_on
    from mspcaps.report.run import page_path

    form = choose_format(json, csv)
    check_options(weights, form, images, shifts, flip, results)
    models, chosen_device = load_weights(weights, device)
    with show_progress("images") as progress:
        dataset = load_for(models[0], data, split, progress.update, skip_broken=skip_broken, tell=note)
    subset = random_subset(dataset, images)
    if shifts:
        part = subset is not dataset
        show_shifts(weights[0], models[0], subset, split, part, batch_size, chosen_device, results)
        return
    with show_progress("images") as progress:
        settings = (batch_size, chosen_device, progress.update)
        if len(models) > 1:
            # broken pictures are noted above
            result, members = evaluate_ensemble(models, data, split, *settings, skip_broken, silent, flip)
        else:
            result, members = run(models[0], subset, *settings, flip=flip), []
    target = page_path(out, weights, subset.name, split, images, flip) if page else None
    source = data or str(trained_on(models[0]))
    show_result(form, weights, models[0], members, result, subset, source, split, skip_broken, target)


def check_options(
    weights: "Sequence[str]", form: Format, images: int | None, shifts: bool, flip: bool, results: Path
) -> None:
    """Refuse options that contradict each other, before minutes of measuring."""
    if not weights:
        raise MspcapsError("name at least one weights file")
    if shifts and form != "text":
        raise MspcapsError(f"the figures of --shifts are written to {results}/robustness as JSON: leave out --{form}")
    if shifts and flip:
        raise MspcapsError("--shifts does not average over mirror images: leave out --flip")
    if len(weights) > 1 and (shifts or images is not None):
        raise MspcapsError("--shifts and --images take a single weights file: measure the files one at a time")
    if shifts:
        check_writable(results / "robustness")


def load_weights(weights: "Sequence[str]", device: str | None) -> "tuple[list[nn.Module], torch.device]":
    """-> models from weights files or exported files, and the device they run on."""
    from mspcaps.export import load_onnx
    from mspcaps.models import load_model
    from mspcaps.training import choose_device

    exported = [is_onnx(name, device) for name in weights]
    pairs = zip(weights, exported, strict=True)
    models: list[nn.Module] = [load_onnx(name) if onnx else load_model(name) for name, onnx in pairs]
    return models, choose_device("cpu" if any(exported) else device)


def show_result(
    form: Format, weights: "Sequence[str]", model: "nn.Module", members: "Sequence[Evaluation]", result: "Evaluation",
    data: "ImageSet", source: str, split: str, skip_broken: bool, target: Path | None,
) -> None:  # fmt: skip
    """Print the figures, write a page to `target`, or print a document, whose keys docs/formats.md lists."""
    from mspcaps.evaluation.accuracy import MIRRORED
    from mspcaps.report import evaluation_page, write_page
    from mspcaps.report.evaluation import as_document
    from mspcaps.report.run import folder_notes

    if form == "text":
        show_figures(weights, members, result, source, split)
    page = None
    if target is not None:
        explained = None if members else model
        described = (weights, model, result, data, source, split, skip_broken)
        page = show_page(lambda: write_page(target, evaluation_page(*described), explained), form)
    if form == "text":
        return
    if form == "csv" and result.flip:  # a row describes a class and has no place for it
        note(MIRRORED)
    document = {"weights": weights, "data": source, "split": split, **as_document(result)}
    document["members"] = [{"weights": name, **as_document(own)} for name, own in zip(weights, members, strict=False)]
    document |= {"notes": folder_notes(source, [split], skip_broken), "page": page}
    print_document(form, document, document["classes"])


def show_figures(
    weights: "Sequence[str]", members: "Sequence[Evaluation]", result: "Evaluation", source: str, split: str
) -> None:
    """Print tables and sentences; of an ensemble a row for every member, and the ensemble last."""
    from mspcaps.evaluation.accuracy import MIRRORED
    from mspcaps.report.evaluation import class_rows, mean_row

    if members:
        rows = [
            (
                name, f"{own.accuracy:.2f} %", f"{own.mean_per_class:.2f} %", f"{own.loss:.4f}", f"{own.ece:.2f} %",
                f"{own.confidence:.2f} %",
            )
            for name, own in zip([*weights, f"ensemble of {len(members)}"], [*members, result], strict=True)
        ]  # fmt: skip
        heads = ("weights", "accuracy", "mean over classes", "loss", "calibration error", "mean confidence")
        table(heads, rows, right=range(1, 6))
    else:
        heads = ("class", "images", "precision", "recall", "F1", "AUC")
        table(heads, [*class_rows(result), mean_row(result)], right=range(1, 6))
    show_source(source, split, result.n)
    if not members:
        print(
            f"accuracy {result.accuracy:.2f} %  mean over classes {result.mean_per_class:.2f} %  "
            f"loss {result.loss:.4f}  calibration error {result.ece:.2f} % at a mean confidence of "
            f"{result.confidence:.2f} %"
        )
    if result.flip:
        print(MIRRORED)
    if result.health:
        show_health(result.health)


def show_source(data: str, split: str, n: int) -> None:
    """Print which images were measured; note what else is in their folder."""
    from mspcaps.data import CATALOG

    source = Path(data).expanduser()
    custom = str(source) not in CATALOG and source.exists()
    say(f"{source.resolve() if custom else data}, {split}: {n:,} images")
    if custom and source.is_dir():
        if split == "test" and not (source / "train").is_dir():
            print("these are the pictures of each class that training holds out; --split all takes every picture")
        note_skipped([source])


def random_subset(data: "ImageSet", count: int | None) -> "ImageSet":
    """`count` of the images, always the same ones; without a count, all of them."""
    if count is None or count == len(data):
        return data
    if not 0 < count < len(data):
        raise MspcapsError(f"--images is {count:,}, but must be from 1 to {len(data):,}, the images of {data.name}")
    return data.split(count)[1]


def show_shifts(
    weights: str, model: "nn.Module", data: "ImageSet", split: str, part: bool, batch_size: int,
    device: "torch.device", results: Path,
) -> None:  # fmt: skip
    """Measure on changed images, print the table and write the figures; `part` says that these are not all images."""
    from mspcaps.bench.result import environment
    from mspcaps.evaluation import ShiftResult, evaluate_shifts, write_shifts
    from mspcaps.files import sha256_of
    from mspcaps.models.shipped import weights_path

    machine = environment(device)
    with show_progress("images") as progress:
        evaluation = evaluate_shifts(model, data, (), 0, batch_size, device, progress.update)
    name = data.name if split == "test" else f"{data.name} {split}"  # entries are named after the data
    result = ShiftResult.of(model, name, evaluation, part, sha256_of(weights_path(weights)), machine)
    heads, rows = result.table()
    table(heads, rows, right=range(2, len(heads)))
    say(f"accuracy in percent on {evaluation.n:,} images of {name}")
    path, chart = write_shifts(results, result)
    say(f"Figures: {path}\nChart:   {chart}")


def show_health(health: "Sequence[BlockHealth]") -> None:
    """Print a row for every routing block, and a sentence about each that has collapsed."""
    print("\nRouting: entropy of the couplings and use of the most used capsule, relative to uniform couplings;")
    print("capsules that never win; points of accuracy lost when an input comes from another image")
    rows = [
        (
            block.name, str(block.capsules), f"{block.entropy:.3f}", f"{block.top:.2f} x",
            f"{100 * block.starved:.1f} %",
            ", ".join(f"{name} {lost:.1f}" for name, lost in block.swapped.items()),
        )
        for block in health
    ]  # fmt: skip
    table(("block", "capsules", "entropy", "most used", "starved", "swapped"), rows, right=(1, 2, 3, 4))
    for block in health:
        if block.collapsed:
            print(f"{block.name} has collapsed: {block.why()}")


def attack(
    weights: Positional[str],
    data: Maybe[str] = None,
    eps: tuple[str, ...] = ("1/255", "2/255", "4/255", "8/255"),
    attacks: Maybe[tuple[str, ...]] = None,
    restarts: int = 1,
    images: Maybe[int] = None,
    split: Literal["train", "val", "test", "all"] = "test",
    seed: int = 0,
    surrogate: Maybe[str] = None,
    batch_size: Maybe[int] = None,
    check: Annotated[bool, tyro.conf.arg(help="Whether to check afterwards that the figures can be trusted.")] = True,
    device: Maybe[str] = None,
    results: Path = Path("results"),
) -> None:
    """Attack trained weights and measure the accuracy that remains; warn if the figures cannot be trusted.

    An attack is written NAME[-STEPS][:OBJECTIVE], such as pgd-50:cw. The names are fgsm, bim, pgd, apgd, square and
    votes (for models with routing); the objectives are margin, cross_entropy, log_odds (for capsules), cw, dlr and, for
    apgd, targeted_dlr. Images that the model gets wrong without an attack count as wrong.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        data: Data set name, or path of a folder or .npz file; default: the data the weights were trained on.
        eps: Budgets: by how much each pixel in [0, 1] may change, such as 8/255 or 0.03.
        attacks: Attacks to run; default: fgsm pgd apgd, for capsules also apgd:log_odds votes:log_odds.
        restarts: Number of random starts; each later one attacks the images that survived those before it.
        images: Attack this many images only, chosen at random but always the same; default: all.
        split: Which split to use.
        seed: Seed of the random starts.
        surrogate: Other weights, for one more check: whether images that fool them also fool the model.
        batch_size: Images per batch; default: 50 on a CPU, 2500 on a GPU.
        device: cpu, cuda or mps; default: the GPU if there is one.
        results: The figures are written to robustness/attack-*.json in this folder, with a chart beside them.
    """
    from mspcaps.bench.result import environment
    from mspcaps.evaluation import attack as run
    from mspcaps.evaluation import robustness
    from mspcaps.training import choose_device

    if weights.lower().endswith(".onnx"):
        raise MspcapsError(f"{weights} has no gradients: attack the weights that it was exported from")
    budgets = [robustness.parse_eps(text) for text in eps]
    chosen = choose_device(device)
    machine = environment(chosen)
    check_writable(results / robustness.FOLDER)  # before minutes of attacking
    with show_progress("images") as progress:
        result = run(
            weights, data, budgets, attacks, restarts=restarts, images=images, split=split, seed=seed,
            batch_size=batch_size, device=chosen, surrogate=surrogate, check=check, progress=progress.update,
        )  # fmt: skip
    heads, rows = result.table()
    table(heads, rows, right=range(1, len(heads)))
    say(f"{result.weights} on {result.n:,} images of {result.dataset}: {result.clean_accuracy:.2f} % without an attack")
    for caution in result.cautions:
        say(f"warning: {caution}")
    path = robustness.result_path(results, result, images)
    robustness.write_robustness(path, result, machine)
    say(f"Figures: {path}\nChart:   {path.with_suffix('.svg')}")
