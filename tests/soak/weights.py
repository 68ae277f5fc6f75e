"""Weights, checkpoints and exported files that were damaged, changed or never weights; and bad input to the functions
of Python: images, tensors, loaders, recipes, estimators."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mspcaps
from mspcaps.errors import MspcapsError
from mspcaps.training.checkpoint import save_checkpoint
from tests.soak.folders import RUN, cut
from tests.soak.kinds import TRAIN, Kind, Prepare, calls, prepared, written

MODEL = Path("model.safetensors")
CHECKPOINT = f"{RUN}/checkpoint.safetensors"
Tensors = dict[str, torch.Tensor]


def changed(header: dict[str, Any] | None = None, tensors: Callable[[Tensors], object] = lambda t: None) -> Prepare:
    """The weights with other words in their header, or other tensors."""

    def prepare() -> None:
        with safe_open(MODEL, "pt") as file:
            words = file.metadata()
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        for key, value in (header or {}).items():
            before = json.loads(words.get(key, "null"))
            words[key] = json.dumps(before | value if isinstance(value, dict) and isinstance(before, dict) else value)
        tensors(stored)
        save_file(stored, MODEL, words)

    return prepare


def every(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(t) for name, t in tensors.items()})


def first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    def apply(tensors: Tensors) -> None:
        name = next(name for name, t in sorted(tensors.items()) if t.ndim > 1)
        tensors[name] = change(tensors[name])

    return apply


def pickled() -> None:
    torch.save({"weight": torch.zeros(2)}, MODEL)


def no_header() -> None:
    save_file({"weight": torch.zeros(2)}, MODEL)


FILES: dict[str, tuple[str, Prepare]] = {
    "half a file": ("model.safetensors", cut(MODEL, 0.5)),
    "all but the last byte": ("model.safetensors", cut(MODEL, 0.99999)),
    "an empty file": ("model.safetensors", written("model.safetensors", b"")),
    "text": ("model.safetensors", written("model.safetensors", "weights")),
    "zeros": ("model.safetensors", written("model.safetensors", bytes(1000))),
    "a header of 2^63 bytes": ("model.safetensors", written("model.safetensors", b"\xff" * 7 + b"\x7f" + bytes(99))),
    "a pickle": ("PyTorch|safetensors", pickled),
    "weights of someone else": ("model.safetensors", no_header),
    "a model that nobody knows": ("mspcaps_tx", changed({"model": {"name": "mspcaps_tx"}})),
    "another model": ("model.safetensors", changed({"model": {"name": "mspcaps_t_scale8"}})),
    "a number for a name": ("model.safetensors", changed({"model": {"name": 3}})),
    "a setting that nobody knows": ("colour", changed({"model": {"colour": 3}})),
    "classes of text": ("num_classes|two", changed({"model": {"num_classes": "two"}})),
    "more classes than weights": ("model.safetensors", changed({"model": {"num_classes": 3}, "classes": [*"abc"]})),
    "images of 100,000 pixels": ("model.safetensors", changed({"model": {"img_size": [100_000, 100_000]}})),
    "images of no pixels": ("model.safetensors|img_size", changed({"model": {"img_size": [0, 0]}})),
    "images of text": ("img_size.*big", changed({"model": {"img_size": "big"}})),
    "minus three channels": ("in_chans|model.safetensors", changed({"model": {"in_chans": -3}})),
    "a deviation of zero": ("std|model.safetensors", changed({"model": {"std": [0]}})),
    "a mean of two channels": ("mean|model.safetensors", changed({"model": {"mean": [0, 0]}})),
    "two classes of one name": ("model.safetensors", changed({"classes": ["a", "a"]})),
    "three names for two classes": ("3 classes", changed({"classes": ["a", "b", "c"]})),
    "names that are numbers": ("model.safetensors", changed({"classes": [1, 2]})),
    "a recipe that is text": ("model.safetensors", changed({"recipe": "mine"})),
    "a tensor too few": ("model.safetensors", changed(tensors=lambda t: t.pop(min(t)))),
    "a tensor too many": ("model.safetensors", changed(tensors=lambda t: t.update(extra=torch.zeros(1)))),
    "a tensor of another shape": ("model.safetensors", changed(tensors=first(lambda t: t[:1].clone()))),
    "whole numbers": ("int8", changed(tensors=every(lambda t: t.to(torch.int8)))),
    "no numbers": ("finite", changed(tensors=first(lambda t: t * torch.nan))),
    "no end": ("finite", changed(tensors=first(lambda t: t / 0))),
}  # fmt: skip


def stopped(change: Callable[[Path], object]) -> Prepare:
    """A run that was stopped after its first step, and whose checkpoint somebody changed since."""

    def prepare() -> None:
        import threading

        from mspcaps.cli.training import choose_recipe
        from mspcaps.training import Stopped, train

        stop, given = threading.Event(), {"data": "pictures", "model": "mspcaps_t_scale16"}
        recipe = choose_recipe(None, given | {"epochs": 1, "batch_size": 4})
        try:
            train(recipe, device="cpu", progress=False, stop=stop, listener=lambda trainer: stop.set())
        except Stopped:
            change(Path(CHECKPOINT))
            return
        raise AssertionError("it was not stopped")

    return prepare


def flip(path: Path) -> None:
    content, generator = bytearray(path.read_bytes()), random.Random(0)
    for _ in range(50):
        content[generator.randrange(len(content) // 2, len(content))] ^= 255
    path.write_bytes(content)


def progress_changed(**change: Any) -> Callable[[Path], object]:
    def change_it(path: Path) -> None:
        with safe_open(path, "pt") as file:
            words = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        words["progress"] = json.dumps(json.loads(words["progress"]) | change)
        save_file(tensors, path, words)

    return change_it


def more_pictures(path: Path) -> None:
    for name in ("disc", "square"):
        Image.new("L", (16, 16)).save(f"pictures/{name}/more.png")


def other_pictures(path: Path) -> None:
    for picture in Path("pictures").rglob("*.png"):
        Image.new("L", (16, 16), 77).save(picture)


CHECKPOINTS: dict[str, tuple[str, Prepare]] = {
    "half of one": ("checkpoint", stopped(lambda path: cut(path, 0.5)())),
    "an empty one": ("checkpoint", stopped(lambda path: path.write_bytes(b""))),
    "bytes turned over": ("checkpoint", stopped(flip)),
    "another epoch": ("checkpoint", stopped(progress_changed(epoch=7))),
    "a step that is text": ("checkpoint", stopped(progress_changed(step="one"))),
    "a history that is a number": ("checkpoint", stopped(progress_changed(history=3))),
    "one of another model": ("checkpoint", stopped(lambda p: save_checkpoint(p, {"x": torch.ones(1)}, {"recipe": {}}))),
    "without progress": ("checkpoint", stopped(lambda path: save_file({"x": torch.ones(1)}, path))),
    "more pictures since": ("checkpoint", stopped(more_pictures)),
    "other pictures since": ("checkpoint", stopped(other_pictures)),
    "a folder in its place": ("checkpoint", stopped(lambda path: (path.unlink(), path.mkdir()))),
}


def predict(pictures: Any, **options: Any) -> Callable[[], Any]:
    """What the model says, with the broken ones as errors."""

    def call() -> None:
        found = mspcaps.predict("model.safetensors", pictures() if callable(pictures) else pictures, **options)
        raise MspcapsError("; ".join(one.error or "predicted" for one in found) or "nothing")

    return call


def evaluate(*data: Any) -> Callable[[], Any]:
    model = lambda: mspcaps.load_model("model.safetensors")  # noqa: E731
    return lambda: mspcaps.evaluate(model(), data[0] if len(data) == 1 else data)


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise MspcapsError("picture 3 is broken")


def loader(*tensors: torch.Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), 4)


IMAGES, LABELS = torch.zeros(8, 1, 16, 16), torch.arange(8) % 2
MEMORY: dict[str, tuple[str, Callable[[], Any]]] = {
    "floats from 0 to 255": ("255", predict(np.full((16, 16), 200.0))),
    "floats below zero": ("-1", predict(np.full((16, 16), -1.0))),
    "no numbers": ("nan", predict(np.full((16, 16), np.nan))),
    "whole numbers of 64 bits": ("int64", predict(np.zeros((16, 16), np.int64))),
    "truth values": ("bool", predict(np.zeros((16, 16), bool))),
    "complex numbers": ("complex", predict(np.zeros((16, 16), complex))),
    "text": ("<U", predict(np.full((16, 16), "a"))),
    "one axis": (r"\(16,\)", predict(np.zeros(16, np.uint8))),
    "five axes": (r"1, 1, 1, 16, 16", predict(np.zeros((1, 1, 1, 16, 16), np.uint8))),
    "no pixels": ("0, 0", predict(np.zeros((0, 0, 1), np.uint8))),
    "two channels": ("16, 16, 2|2", predict(np.zeros((1, 16, 16, 2), np.uint8))),
    "grey or in colour": ("3", predict(np.zeros((3, 16, 16), np.uint8))),
    "a number": ("int", predict(3)),
    "nothing": ("NoneType", predict(None)),
    "a list of numbers": ("int", predict([1, 2])),
    "a table": ("dict|int|str", predict({"a": 1}.items())),
    "a missing file": ("nowhere.png", predict("nowhere.png")),
    "a file among good ones": ("nowhere.png", predict(["one.png", "nowhere.png"])),
    "a folder of nothing": ("pictures/empty", lambda: (Path("pictures/empty").mkdir(), predict("pictures/empty")())),
    "a tensor of floats to 255": ("255", predict(torch.full((1, 16, 16), 200.0))),
    "a sparse tensor": ("sparse|image", predict(torch.zeros(1, 16, 16).to_sparse())),
    "a tensor without numbers": ("meta|image", predict(torch.zeros(1, 16, 16, device="meta"))),
    "top of zero": ("top.*0", predict("one.png", top=0)),
    "a batch of zero": ("batch_size.*0", predict("one.png", batch_size=0)),
    "a closed picture": ("picture|closed", predict(lambda: closed())),
    "labels that are missing": ("8|labels", evaluate(IMAGES)),
    "labels too few": (r"8, 1, 16, 16.*7", evaluate(IMAGES, LABELS[:7])),
    "labels out of range": ("2|9", evaluate(IMAGES, LABELS + 8)),
    "labels that are fractions": ("float|label", evaluate(IMAGES, LABELS + 0.5)),
    "images without an axis": ("8, 16, 16", evaluate(IMAGES[:, 0], LABELS)),
    "images of another size": ("16 x 16", evaluate(torch.zeros(8, 1, 20, 20), LABELS)),
    "images of other channels": ("3", evaluate(torch.zeros(8, 3, 16, 16), LABELS)),
    "images to 255": ("255|200", evaluate(IMAGES + 200, LABELS)),
    "images of no numbers": ("nan|finite", evaluate(IMAGES * torch.nan, LABELS)),
    "no images": ("0", evaluate(IMAGES[:0], LABELS[:0])),
    "a data set that nobody knows": ("cifra10", evaluate("cifra10")),
    "a loader of images alone": ("list|pairs", evaluate(loader(IMAGES))),
    "a loader of triples": ("list|pairs", evaluate(loader(IMAGES, LABELS, LABELS))),
    "a loader of flat images": ("pairs", evaluate(loader(IMAGES.flatten(1), LABELS))),
    "a loader of images to 255": ("255|200", evaluate(loader(IMAGES + 200, LABELS))),
    "a loader of no numbers": ("nan|finite", evaluate(loader(IMAGES * torch.nan, LABELS))),
    "a loader of other labels": ("9|2", evaluate(loader(IMAGES, LABELS + 8))),
    "a loader that breaks": ("picture 3", evaluate(DataLoader(Broken(), 2))),
    "an empty loader": ("no images", evaluate(loader(IMAGES[:0], LABELS[:0]))),
    "weights that are a number": ("int|3", lambda: mspcaps.load_model(3)),
    "a model that nobody knows": ("mspcaps_tt", lambda: mspcaps.create_model("mspcaps_tt")),
    "classes that are a fraction": ("num_classes|2.5", lambda: mspcaps.create_model("mspcaps_t", num_classes=2.5)),
    "images of three sides": ("img_size", lambda: mspcaps.create_model("mspcaps_t", img_size=(32, 32, 32))),
    "an option that nobody knows": ("colour", lambda: mspcaps.create_model("mspcaps_t", colour=3)),
    "a recipe with a wrong type": ("epochs", lambda: mspcaps.Recipe(epochs="3")),
    "an explanation of a number": ("int|3", lambda: mspcaps.explain(mspcaps.load_model(MODEL), 3)),
    "an epsilon of two": ("2", lambda: mspcaps.attack("model.safetensors", "pictures", [2.0])),
}  # fmt: skip


def closed() -> Image.Image:
    picture = Image.open("one.png")
    picture.close()
    return picture


def fit(X: Any = None, y: Any = None, **options: Any) -> Callable[[], Any]:
    from mspcaps.sklearn import CapsuleClassifier

    good = np.zeros((12, 16, 16), np.uint8), np.arange(12) % 2
    small = {"model": "mspcaps_t_scale16", "img_size": 16, "epochs": 1, "device": "cpu"}
    return lambda: CapsuleClassifier(**small | options).fit(good[0] if X is None else X, good[1] if y is None else y)


def after_fit(X: Any) -> Callable[[], Any]:
    return lambda: fit()().predict(X)


ESTIMATOR: dict[str, tuple[str, Callable[[], Any]]] = {
    "one class": ("one class", fit(y=np.zeros(12, int))),
    "labels too few": ("12.*11|inconsistent", fit(y=np.arange(11) % 2)),
    "labels that are fractions": ("continuous", fit(y=np.linspace(0, 1, 12))),
    "labels that are missing": ("nan|NaN|None", fit(y=np.array([0, np.nan] * 6))),
    "no numbers": ("NaN", fit(X=np.full((12, 16, 16), np.nan))),
    "no end": ("inf", fit(X=np.full((12, 16, 16), np.inf))),
    "floats to 255": ("200.*value_range", fit(X=np.full((12, 16, 16), 200.0))),
    "floats below zero": ("-1.*value_range", fit(X=np.full((12, 16, 16), -1.0))),
    "a table that is no square": ("17", fit(X=np.zeros((12, 17)))),
    "an image_shape that does not fit": ("image_shape", fit(X=np.zeros((12, 16)), image_shape=(3, 3))),
    "five axes": ("1, 1, 1", fit(X=np.zeros((12, 1, 1, 1, 16)))),
    "text": ("convert|numeric|string|dtype", fit(X=np.full((12, 16, 16), "a"))),
    "no images": ("0", fit(X=np.zeros((0, 16, 16)), y=np.zeros(0, int))),
    "a model that nobody knows": ("mspcaps_tt", fit(model="mspcaps_tt")),
    "no epochs": ("epochs.*0", fit(epochs=0)),
    "a rate of zero": ("lr", fit(lr=0.0)),
    "a field that nobody knows": ("epoch", fit(recipe={"epoch": 3})),
    "a range upside down": ("value_range|must be", fit(X=np.full((12, 16, 16), 0.5), value_range=(1, 0))),
    "a device that nobody has": ("tpu", fit(device="tpu")),
    "other channels than before": ("channels", after_fit(np.zeros((2, 16, 16, 3)))),
}


def kinds() -> Iterator[Kind]:
    yield from prepared("weights", "predict model.safetensors one.png", FILES)
    few = ("half a file", "another model", "no numbers", "three names for two classes")
    chosen = {name: FILES[name] for name in few}
    yield from prepared("evaluated weights", "eval model.safetensors --data pictures", chosen)
    yield from prepared("exported weights", "export model.safetensors x.onnx", chosen)
    yield from prepared("initial weights", f"{TRAIN} --init ./model.safetensors", chosen)
    yield from prepared("weights in the app", "app --weights model.safetensors", chosen)
    onnx = {
        "text": ("model.onnx", written("model.onnx", "no graph")),
        "nothing": ("model.onnx", written("model.onnx", b"")),
        "weights called so": ("model.onnx", lambda: MODEL.rename("model.onnx")),
    }  # fmt: skip
    yield from prepared("onnx", "predict model.onnx one.png", onnx)
    yield from prepared("evaluated onnx", "eval model.onnx --data pictures", onnx)
    yield from prepared("checkpoint", TRAIN, CHECKPOINTS)
    yield from calls("in memory", MEMORY)
    yield from calls("estimator", ESTIMATOR)
