"""One typed function per command. Heavy imports stand inside the functions, so that --help answers at once."""

import sys
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    print_results,
    show_progress,
    stoppable,
    table,
)
from mspcaps.errors import MspcapsError
from mspcaps.files import check_writable, format_bytes
from mspcaps.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mspcaps.evaluation import Prediction


def quickstart(out: Path = Path("runs/quickstart"), device: Maybe[str] = None, train: bool = True) -> None:
    """Evaluate shipped weights on the embedded FashionMNIST sample, then train MSPCaps-T on it. Needs no network.

    Args:
        out: Folder for the result pages and the trained weights.
        device: cpu, cuda or mps; default: the GPU if there is one.
        train: Whether to train as well, which takes about a minute; evaluating the shipped weights takes seconds.
    """
    from mspcaps.quickstart import SHIPPED, TRAIN_YOUR_OWN, shipped
    from mspcaps.quickstart import quickstart as run

    check_writable(out)  # before the work
    result = shipped(out, device)
    say(
        f"{SHIPPED}, shipped weights: {result.evaluation.accuracy:.1f} % of "
        f"{result.evaluation.n:,} test images classified correctly.\nResult page: {result.page}\n"
    )
    if not train:
        return
    print("Training the same model from scratch on the embedded 5,000 FashionMNIST images.", flush=True)
    with stoppable() as stop:
        result = run(out, device, stop=stop)
    print(f"{result.evaluation.accuracy:.1f} % of {result.evaluation.n:,} test images classified correctly.\n")
    say(f"Result page: {result.page}\n\nTry next:")
    say(f"  mspcaps predict {result.weights} PICTURE.png")
    print("  mspcaps explain mspcaps_t.cifar10 PICTURE.png   # shipped weights")
    print("  mspcaps models")
    print(f"  {TRAIN_YOUR_OWN}   # FOLDER/CLASS/*.png")


def models(
    pattern: Positional[str] = "*",
    num_classes: int = 10,
    in_chans: int = 3,
    img_size: tuple[int, ...] = (32,),
    pretrained: Switch = False,
    json: JsonSwitch = False,
    csv: CsvSwitch = False,
) -> None:
    """List models with their parameters, and their multiply-adds and training memory per image in fp32.

    Args:
        pattern: Shell pattern of model names, such as 'mspcaps_t*'.
        num_classes: Number of classes.
        in_chans: Number of image channels.
        img_size: Side length of the images, or height and width.
        pretrained: List the trained weights that ship with the package instead.
    """
    from mspcaps.models import list_models, summarize

    form = choose_format(json, csv)
    if pretrained:
        show_pretrained(pattern, form)
        return
    names = list_models(pattern)
    if not names:
        raise MspcapsError(f"no model matches {pattern!r}: `mspcaps models` lists them all")
    if len(img_size) not in (1, 2):
        raise MspcapsError(f"--img-size takes one or two numbers, not {len(img_size)}")
    costs, refusals = [], []
    for name in names:
        try:
            costs.append({"model": name, **asdict(summarize(name, num_classes, in_chans, (img_size[0], img_size[-1])))})
        except MspcapsError as error:
            refusals.append(f"{name}: {error}")
    if not costs:
        raise MspcapsError(refusals[0])
    if form != "text":
        task = {"num_classes": num_classes, "in_chans": in_chans, "img_size": [img_size[0], img_size[-1]]}
        print_document(form, task | {"models": costs}, costs)
    else:
        rows = [
            (
                cost["model"], f"{cost['params']:,}", f"{cost['macs'] / 1e6:,.1f} M",
                format_bytes(cost["memory_bytes_per_image"]), format_bytes(cost["weights_bytes"]),
            )
            for cost in costs
        ]  # fmt: skip
        table(("model", "parameters", "multiply-adds", "memory", "weights file"), rows, right=(1, 2, 3, 4))
    for line in refusals:
        say(line, sys.stdout if form == "text" else sys.stderr)


def show_pretrained(pattern: str, form: Format) -> None:
    """List the shipped weights, whose names `eval` and `predict` accept as WEIGHTS."""
    from mspcaps.models import list_pretrained, read_card

    cards = [
        read_card(name) for name in list_pretrained() if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    ]
    if form != "text":
        entries = [
            {
                "weights": card.name, "model": card.model, "dataset": card.dataset, "params": card.params,
                "accuracy": card.accuracy, "test_images": card.test_images, "bytes": card.bytes, "sha256": card.sha256,
            }
            for card in cards
        ]  # fmt: skip
        print_document(form, {"weights": entries}, entries)
        return
    if not cards:
        print("this version ships no weights" if pattern == "*" else f"no shipped weights match {pattern!r}")
        return
    rows = [
        (card.name, f"{card.params:,}", f"{card.accuracy:.2f} % of {card.test_images:,}", format_bytes(card.bytes))
        for card in cards
    ]
    table(("weights", "parameters", "test accuracy", "file"), rows, right=(1, 2, 3))


def predict(
    weights: Positional[str],
    paths: Annotated[Positional[list[Path]], tyro.conf.arg(help_behavior_hint="")],
    top: int = 3,
    device: Maybe[str] = None,
    json: JsonSwitch = False,
    csv: CsvSwitch = False,
    skip_broken: SkipBroken = False,
) -> int:
    """Classify pictures: print the most likely classes and their scores.

    Args:
        weights: A .safetensors file, a name listed by `mspcaps models --pretrained`, or an exported .onnx file.
        paths: Picture files or folders of pictures.
        top: Number of classes to print.
        device: cpu, cuda or mps; default: the GPU if there is one. ONNX files run on the CPU.
    """
    form = choose_format(json, csv)
    check_paths(paths)
    if is_onnx(weights, device):  # runs without even importing torch
        from mspcaps.export.runner import OnnxModel

        predictions = OnnxModel(weights).stream_predictions(paths, top)
    else:
        from mspcaps.evaluation import stream_predictions
        from mspcaps.models import load_model
        from mspcaps.training import choose_device

        predictions = stream_predictions(load_model(weights).to(choose_device(device)), paths, top)
    if skip_broken:
        from mspcaps.evaluation.predict import leave_out_broken

        predictions = leave_out_broken(predictions, note)
    if form != "text":
        return print_predictions(form, weights, list(predictions))
    return print_results(
        (f"{picture.path}: {', '.join(f'{name} {score:.3f}' for name, score in picture.top)}", picture.error)
        for picture in predictions
    )


def print_predictions(form: Format, weights: str, predictions: "list[Prediction]") -> int:
    """CSV has a row for each of the likely classes of a picture."""
    pictures = [
        {
            "path": picture.path, "error": picture.error,
            "classes": [{"class": name, "score": score} for name, score in picture.top],
        }
        for picture in predictions
    ]  # fmt: skip
    rows = [
        {"path": picture.path, "rank": rank, "class": name, "score": score, "error": picture.error}
        for picture in predictions
        for rank, (name, score) in enumerate(picture.top or [(None, None)], start=1)
    ]
    print_document(form, {"weights": weights, "pictures": pictures}, rows)
    return 1 if any(picture.error for picture in predictions) else 0


def check_paths(paths: list[Path]) -> None:
    if not paths:
        raise MspcapsError("name at least one picture or folder")
    note_skipped(paths)


def explain(
    weights: Positional[str],
    paths: Annotated[Positional[list[Path]], tyro.conf.arg(help_behavior_hint="")],
    label: Annotated[Maybe[str], tyro.conf.arg(name="class")] = None,
    out: Path = Path("runs/explain"),
    device: Maybe[str] = None,
) -> int:
    """Write an HTML page per picture that shows why the model decided as it did, with parts, heat maps and the
    part-whole tree, and an index.html that lists them all.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        paths: Picture files or folders of pictures.
        label: The class to explain; default: the predicted class, next to the runner-up.
        out: Folder for the pages, with a subfolder per weights file.
        device: cpu, cuda or mps; default: the GPU if there is one.
    """
    from mspcaps.explanation.files import write_pages
    from mspcaps.training import choose_device

    check_paths(paths)
    pages: list[Path] = []

    def lines() -> "Iterator[tuple[str, str | None]]":
        for result in write_pages(weights, paths, out, label, progress.update, choose_device(device)):
            pages.extend([result.page] if result.page else [])
            yield f"{result.picture}: {result.answer}  {result.page}", result.error

    with show_progress() as progress:
        status = print_results(lines())
    if len(pages) > 1:
        print(f"all of them: {pages[0].with_name('index.html')}")
    return status


def export(
    weights: Positional[str],
    out: Positional[Path],
    int8: Switch = False,
    calibrate: Maybe[str] = None,
) -> None:
    """Export trained weights to an ONNX or torch.export file, after checking that its scores match PyTorch's.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        out: File to write: NAME.onnx, or NAME.pt2 for torch.export.load.
        int8: ONNX only: quantise the convolutions to eight bits and report how many predictions stay the same.
        calibrate: Data set or folder that sets the int8 ranges; default: the data the weights were trained on.
    """
    from mspcaps.export import export_model

    with show_progress() as progress:
        exported = export_model(weights, out, int8, calibrate, progress.update)
    metadata = exported.metadata
    height, width = metadata.img_size
    task = f"{len(metadata.classes)} classes, images of {metadata.channels} x {height} x {width}"
    say(f"{exported.path}: {metadata.model}, {task}, {metadata.precision}, {format_bytes(exported.bytes)}")
    differences = ", ".join(f"{difference:.1e} at batch {batch}" for batch, difference in exported.differences.items())
    print(f"largest difference from PyTorch's scores, in fp32: {differences}")
    if int8_check := exported.agreement:
        same, images = int8_check.same, int8_check.images
        print(
            f"int8 gives the same answer as fp32 for {same:,} of {images:,} test images of {int8_check.data} "
            f"({100 * same / images:.1f} %); {int8_check.calibrated:,} of its training images set the ranges"
        )


def report(
    results: Path = Path("results"),
    out: Path = Path("runs/report"),
    json: JsonSwitch = False,
    csv: CsvSwitch = False,
) -> None:
    """Turn the runs of a ledger into an HTML page of tables and curves, and the tables into Markdown.

    Args:
        results: Folder of the results.
        out: Folder for index.html and report.md; nothing is written elsewhere.
    """
    from mspcaps.report import write_report
    from mspcaps.report.write import group_row, run_row

    form, groups = choose_format(json, csv), write_report(results, out)
    if form != "text":
        rows = [group_row(group) for group in groups]
        runs = [run_row(run, kind) for group in groups for kind in ("runs", "repeats") for run in getattr(group, kind)]
        print_document(form, {"recipes": rows, "runs": runs, "page": (out / "index.html").resolve()}, rows)
        return
    n = sum(len(group.runs) + len(group.repeats) for group in groups)
    say(f"{n} run{'s' * (n != 1)} of {len(groups)} recipe{'s' * (len(groups) != 1)}")
    say(f"Page:      {(out / 'index.html').resolve()}")
    say(f"Tables:    {out / 'report.md'}")


def app(
    weights: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    host: str = "127.0.0.1",
    port: Maybe[int] = None,
    device: Maybe[str] = None,
) -> None:
    """Serve a local web page where you try models on pictures: see the parts, rotate, add noise, attack.

    Args:
        weights: Your own .safetensors files, listed before the shipped models.
        host: Address to listen on. The default is reachable from this computer only; there is no password.
        port: Port to listen on; by default the first free one from 7860 on.
        device: cpu, cuda or mps; default: the GPU if there is one.
    """
    from mspcaps.app import ModelStore
    from mspcaps.app.layout import import_gradio
    from mspcaps.training import choose_device

    import_gradio()  # if missing, it fails before any model is loaded
    from mspcaps.app.server import start

    running = start(ModelStore([path.expanduser() for path in weights], choose_device(device)), host, port)
    print(f"The app is running at {running.url} until you press Ctrl-C.", flush=True)
    running.wait()
