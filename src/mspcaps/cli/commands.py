"""One typed function per command. What is heavy is imported inside, so that --help answers at once."""

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.options import Maybe
from mspcaps.cli.progress import counting, table
from mspcaps.cli.training import resumable_progress
from mspcaps.errors import MspcapsError
from mspcaps.files import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mspcaps.pictures import Prediction


def quickstart(out: Path = Path("runs/quickstart"), device: Maybe[str] = None, train: bool = True) -> None:
    """On the embedded sample of FashionMNIST: what shipped weights make of it, then MSPCaps-T trained anew. No network.

    Args:
        out: Folder for the pages and the weights.
        device: cpu or cuda; by default the GPU if there is one.
        train: Whether to train, too, which takes about a minute; the page about the shipped weights takes seconds.
    """
    from mspcaps.report.quickstart import SHIPPED, shipped
    from mspcaps.report.quickstart import quickstart as run

    ready = shipped(out, device)
    print(f"{SHIPPED}, weights that come with the package: {ready.evaluation.accuracy:.1f} % of ", end="")
    print(f"{ready.evaluation.n:,} test images named rightly.\nThe page:  {ready.page}\n")
    if not train:
        return
    print("Training the same model anew on the embedded 5,000 images of FashionMNIST.", flush=True)
    with resumable_progress() as (listener, stop):
        done = run(out, device, listener, stop=stop)
    print(f"{done.evaluation.accuracy:.1f} % of {done.evaluation.n:,} test images named rightly.\n")
    print(f"The page:  {done.page}\n\nTry next:")
    print(f"  mspcaps predict {done.weights} PICTURE.png")
    print("  mspcaps explain mspcaps_t.cifar10 PICTURE.png   # weights that come with the package")
    print("  mspcaps models")
    own = "mspcaps train --data FOLDER --model mspcaps_t --image-size 32 --epochs 30 --batch-size 32"
    print(f"  {own}   # FOLDER/CLASS/*.png")


def models(
    pattern: Positional[str] = "*",
    num_classes: int = 10,
    in_chans: int = 3,
    img_size: tuple[int, ...] = (32,),
    pretrained: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """The models and what they cost: parameters, multiply-adds and memory for training, each per image in fp32.

    Args:
        pattern: Which models, as a shell pattern such as 'mspcaps_t*'.
        num_classes: Number of classes.
        in_chans: Channels of the images.
        img_size: Side of the images, or height and width.
        pretrained: Show the weights that come with the package instead.
    """
    from mspcaps.models import list_models, summarize

    if pretrained:
        show_pretrained(pattern)
        return
    names = list_models(pattern)
    if not names:
        raise MspcapsError(f"no model matches {pattern!r}: `mspcaps models` lists them all")
    if len(img_size) not in (1, 2):
        raise MspcapsError(f"--img-size takes one or two numbers, not {len(img_size)}")
    rows, refusals = [], []
    for name in names:
        try:
            cost = summarize(name, num_classes, in_chans, (img_size[0], img_size[-1]))
        except MspcapsError as error:
            refusals.append(f"{name}: {error}")
            continue
        weights, memory = size_of(cost.weights_bytes), size_of(cost.memory_bytes_per_image)
        rows.append((name, f"{cost.params:,}", f"{cost.macs / 1e6:,.1f} M", memory, weights))
    if not rows:
        raise MspcapsError(refusals[0])
    table(("model", "parameters", "multiply-adds", "memory", "weights file"), rows, right=(1, 2, 3, 4))
    for line in refusals:
        print(line)


def show_pretrained(pattern: str) -> None:
    """The shipped weights: what `eval` and `predict` take as WEIGHTS."""
    from mspcaps.weights import list_pretrained, read_card

    cards = [
        read_card(name) for name in list_pretrained() if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    ]
    if not cards:
        print("no weights come with this version" if pattern == "*" else f"no shipped weights match {pattern!r}")
        return
    rows = [
        (card.name, f"{card.params:,}", f"{card.accuracy:.2f} % of {card.test_images:,}", size_of(card.bytes))
        for card in cards
    ]
    table(("weights", "parameters", "test accuracy", "file"), rows, right=(1, 2, 3))


def evaluate(
    weights: Positional[str],
    data: Maybe[str] = None,
    split: Literal["train", "test", "all"] = "test",
    batch_size: int = 500,
    device: Maybe[str] = None,
) -> None:
    """Accuracy, loss and calibration of trained weights, in all and per class.

    Confidence is the length of the winner (of a model without capsules: softmax); the calibration error is the mean gap
    between it and the accuracy, over 15 bins.

    Args:
        weights: A .safetensors file that mspcaps wrote, a name that `mspcaps models --pretrained` shows, or the .onnx
            file of `mspcaps export`.
        data: Name of a data set or path of a folder or .npz; by default what the weights were trained on.
        split: Which images of it.
        batch_size: Images at a time.
        device: cpu or cuda; by default the GPU if there is one. ONNX runs on the CPU.
    """
    from mspcaps.data import CATALOG
    from mspcaps.evaluation import evaluate as run
    from mspcaps.evaluation import load_for
    from mspcaps.export import load_onnx
    from mspcaps.training import choose_device
    from mspcaps.weights import load_model

    exported = is_onnx(weights, device)
    model = load_onnx(weights) if exported else load_model(weights)
    where = choose_device("cpu" if exported else device)
    with counting() as progress:
        images = load_for(model, data, split, progress)
        found = run(model, images, batch_size, where, lambda done, of: progress("evaluating", done, of))
    counts = found.confusion.sum(1).tolist()
    rows = [
        (name, f"{count:,}", f"{percent:.2f} %" if count else "-")
        for name, count, percent in zip(found.classes, counts, found.per_class, strict=True)
    ]
    table(("class", "images", "accuracy"), rows, right=(1, 2))
    source = Path(data or vars(model)["about"]["recipe"]["data"]).expanduser()
    own = str(source) not in CATALOG and source.exists()
    print(f"{source.resolve() if own else images.name}, {split}: {found.n:,} images")
    if split == "test" and own and source.is_dir() and not (source / "train").is_dir():
        print("a fifth of each class, which training would hold out; --split all takes every picture")
    print(
        f"accuracy {found.accuracy:.2f} %  mean of the classes {found.mean_per_class:.2f} %  loss {found.loss:.4f}  "
        f"calibration error {found.ece:.2f} % at a mean confidence of {found.confidence:.2f} %"
    )


def predict(
    weights: Positional[str],
    paths: Annotated[Positional[list[Path]], tyro.conf.arg(help_behavior_hint="")],
    top: int = 3,
    device: Maybe[str] = None,
) -> int:
    """Say what is on pictures: the likeliest classes with their scores.

    Args:
        weights: A .safetensors file that mspcaps wrote, a name that `mspcaps models --pretrained` shows, or the .onnx
            file of `mspcaps export`.
        paths: Picture files, or folders of them.
        top: How many classes to show.
        device: cpu or cuda; by default the GPU if there is one. ONNX runs on the CPU.
    """
    if not paths:
        raise MspcapsError("name at least one picture or folder")
    failed = 0
    for prediction in predictions(weights, paths, top, device):
        if prediction.error is None:
            print(f"{prediction.path}: " + ", ".join(f"{name} {score:.3f}" for name, score in prediction.top))
        else:
            print(f"error: {prediction.error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def predictions(weights: str, paths: list[Path], top: int, device: str | None) -> "Iterator[Prediction]":
    """Weights through PyTorch; an exported file through onnxruntime, and then torch is not even imported."""
    if is_onnx(weights, device):
        from mspcaps.export.runner import OnnxModel

        return OnnxModel(weights).stream_predictions(paths, top)
    from mspcaps.evaluation import stream_predictions
    from mspcaps.training import choose_device
    from mspcaps.weights import load_model

    return stream_predictions(load_model(weights).to(choose_device(device)), paths, top)


def is_onnx(weights: str, device: str | None) -> bool:
    """Whether it is an exported file; that runs on the CPU only."""
    exported = weights.lower().endswith(".onnx")
    if exported and device not in (None, "cpu"):
        raise MspcapsError(f"{weights} runs on the CPU, through onnxruntime: leave --device {device} out")
    return exported


def report(
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    page: Path = Path("runs/report/index.html"),
    readme: Maybe[Path] = None,
) -> None:
    """Write the paper's tables with the runs of the ledger beside its figures, as Markdown and as a page.

    Args:
        results: Folder of the ledger.
        out: Where the Markdown goes; ablations.md with its pictures and speed.md go beside it.
        page: Where the page goes.
        readme: Also rewrite the main table in this file, between its marks.
    """
    from mspcaps.report.markdown import summary
    from mspcaps.report.results import write_report

    print(summary(write_report(results, out, page, readme)))
    print(f"\nMarkdown:  {out}, with ablations.md and speed.md beside it\nThe page:  {page.resolve()}")
    if readme:
        print(f"README:    {readme}")
