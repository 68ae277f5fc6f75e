"""A recipe: everything that decides what a run computes. The defaults are the paper's."""

import dataclasses
import functools
import hashlib
import math
import os
import reprlib
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from mspcaps.data import CATALOG, Augmentation, FolderImages, ImageSet
from mspcaps.errors import MspcapsError, nearest, reason
from mspcaps.training.limits import check_numbers

CUSTOM = "custom"  # the name of a recipe that no file has named
MAX_NAME = 200  # bytes of a run's name: file systems take 255, with suffixes
NOT_IN_NAMES = '/\\:*?"<>|'  # some file system refuses them
WARMUP = 5  # epochs of the paper's warm-up


@dataclass(frozen=True)
class Adversary:
    """Whom a model is trained against."""

    kind: Literal["pgd", "trades"] = "pgd"
    """pgd: learn the attacked images; trades: learn the clean ones, and to answer the same under attack."""
    eps: float = 8.0
    """Largest change of a pixel, in 255ths."""
    step_size: float = 2.0
    """Change of a pixel in one step of the attack, in 255ths."""
    steps: int = 10
    """Steps of the attack on every batch."""
    beta: float = 6.0
    """Weight of the answer under attack, for trades."""
    loss: Literal["cross_entropy", "own"] = "cross_entropy"
    """What a step descends: cross-entropy, for capsules on the log-odds of their lengths, or the family's own loss."""

    def __post_init__(self) -> None:
        for name in ("eps", "step_size"):
            if not 0.1 <= getattr(self, name) <= 255:  # less is meant as a part of 1, and would train against nothing
                raise MspcapsError(
                    f"adversary.{name} is {getattr(self, name)}, but is counted in 255ths, from 0.1 to 255: write 8 "
                    "for 8/255"
                )
        if not 0 < self.beta < math.inf:
            raise MspcapsError(f"adversary.beta is {self.beta}, but must be a positive number")
        if self.steps < 1:
            raise MspcapsError(f"adversary.steps is {self.steps}, but must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """One training run. Equal recipes compute the same thing, up to the rounding of the machine."""

    model: str = "mspcaps_t"
    """Name of a registered model."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the model's family, such as iterations=3."""
    data: str = "cifar10"
    """Data set name, or path of an .npz file or of a folder with one subfolder per class."""
    name: str = ""
    """Name of the run in paths and in the ledger; empty: `custom` and what differs from the defaults."""
    epochs: int = 300
    """Passes over the training images."""
    batch_size: int = 128
    """Images per step, summed over all processes; the last, partial batch of an epoch is dropped."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """AdamW (decoupled weight decay), Adam or SGD."""
    lr: float = 5e-4
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Weight decay of every parameter, except those that the model exempts."""
    decay_vectors: bool = True
    """Whether biases, scales of norms and other vectors decay, too."""
    momentum: float = 0.9
    """Momentum of SGD and of Muon."""
    nesterov: bool = False
    """Nesterov momentum, for SGD."""
    muon_lr: float = 0.0
    """Peak learning rate of Muon, for convolutions and linear layers outside the classifier; 0: no Muon."""
    schedule: Literal["cosine", "exponential", "steps", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up; default: 5, or a tenth of the epochs if that is less."""
    warmup_start: float = 0.1
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    min_lr: float = 1e-6
    """Learning rate that the cosine decays to, and below which no other schedule falls."""
    lr_gamma: float = 0.1
    """Factor on the learning rate: of every epoch (exponential), or at every one of lr_steps (steps)."""
    lr_steps: tuple[int, ...] = ()
    """Epochs after which the schedule `steps` multiplies the learning rate by lr_gamma."""
    clip_grad: float = 0.0
    """Gradients are scaled down to this global norm; 0: they are left as they are."""
    precision: Literal["bf16", "fp32"] | None = None
    """What the model computes in; default: bf16 on a GPU that has it, fp32 elsewhere."""
    img_size: int | None = None
    """Images are resized to this side length (square); default: that of the data set."""
    augment: Augmentation | None = None
    """Training augmentation (crop, flip, colour and more); default: that of the data set."""
    adversary: Adversary | None = None
    """Adversarial training: attack every batch before learning from it."""
    balance: bool = False
    """Draw every class equally often in an epoch, however many images it has."""
    init: str = ""
    """Initial weights: a shipped name such as mspcaps_t.cifar10, or a weights file; empty: train from scratch."""
    ema: float = 0.0
    """Decay, per step, of the moving average of the weights that is evaluated and saved; 0: no average."""
    label_smoothing: float = 0.0
    """Share of every label that is spread evenly over all classes; 0.1 is usual."""
    teacher: str = ""
    """Weights of a model to learn from as well: a shipped name such as mspcaps_l.cifar10, or a weights file."""
    teacher_weight: float = 0.5
    """Weight of the teacher's answers in the loss; the labels have the rest."""
    temperature: float = 4.0
    """Divides the logits of both before they are compared: the higher, the more the unlikely classes count."""
    sync_batchnorm: bool = True
    """With several processes BatchNorm sees the statistics of the whole batch; false: of each process's own share."""
    skip_broken: bool = False
    """Leave out pictures of a folder that cannot be read, and say which; otherwise they are refused."""
    validation: int = 0
    """Training images held out to choose the epoch on, so that the test is only at the end; 0: the data set's own."""
    patience: int = 0
    """Stop once this many epochs in a row were no better on the validation images; 0: train all epochs."""
    held_out: int = 0
    """Measure on this many held-out training images instead of the test set, to choose settings."""
    folds: int = 0
    """Cross-validation: split the training images into this many parts and measure on one instead of the test set."""
    fold: int = 0
    """Which part is measured on, from 1 to folds; the others are trained on."""
    seed: int = 0
    """Determines initial weights, image order, augmentation and dropout."""

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        for name, value in _checked(vars(self), Recipe, "the recipe").items():
            object.__setattr__(self, name, value)
        check_numbers(self)
        if not self.name:
            object.__setattr__(self, "name", _named(CUSTOM, self._marks(_defaults(), but=("model", "data"))))
        if not self.name.isprintable() or {*self.name} & {*NOT_IN_NAMES}:
            raise MspcapsError(
                f"the name {self.name!r} is not a valid folder name on every system: leave out {' '.join(NOT_IN_NAMES)}"
            )
        if len(self.run_name.encode()) > MAX_NAME:
            raise MspcapsError(f"the name {reprlib.repr(self.name)} is too long for a folder: shorten it")

    @property
    def dataset(self) -> str:
        """The data set's name in paths and tables."""
        if self.data in CATALOG:
            return self.data
        path = Path(os.path.abspath(Path(self.data).expanduser()))  # a link keeps the name that the command gave
        name = path.stem if path.suffix.lower() == ".npz" else path.name
        return f"own-{name}" if name in CATALOG else name  # a folder that is called like a published set is not it

    @property
    def warmup(self) -> int:
        """Epochs of warm-up: one that nobody chose must not swallow a short run."""
        return min(WARMUP, self.epochs // 10) if self.warmup_epochs is None else self.warmup_epochs

    @property
    def run_name(self) -> str:
        return run_name(vars(self))

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self) | {"lr_steps": list(self.lr_steps)}

    def replace(self, **changes: Any) -> "Recipe":
        """The recipe with some fields changed. Changes other than seed and fold become part of its name."""
        changes = _checked(changes, Recipe, "the recipe")
        base, *marks = self.name.split("+")
        if changes.get("name"):
            return dataclasses.replace(self, **changes)
        if base == CUSTOM:
            return dataclasses.replace(self, **changes | {"name": ""})
        changed = dataclasses.replace(self, **changes)
        kept = {mark.partition("=")[0]: mark for mark in marks}
        return dataclasses.replace(changed, name=_named(base, kept | changed._marks(self.to_dict())))

    def resolve(self, train: ImageSet | FolderImages | None = None) -> "Recipe":
        """The recipe with what it leaves open filled in: the warm-up, and what is up to the data set, from the catalog
        or from the training images. Of one's own images, without them, nothing is known."""
        size, augment = self.img_size, self.augment
        if self.data in CATALOG:
            size, augment = size or CATALOG[self.data].img_size[0], augment or CATALOG[self.data].augment
        if train is not None:
            size = train.size[0] if train.size[0] == train.size[1] else size
            augment = augment or Augmentation(crop=min(train.size) // 8)  # a small shift leaves any class as it is
            for name, harm in (("crop", "move {} out of view"), ("cutout", "cover {} whole")):
                if (pixels := getattr(augment, name)) >= min(train.size):
                    which = f"images of {train.size[0]} x {train.size[1]} pixels"
                    raise MspcapsError(
                        f"augment.{name} is {pixels}, which can {harm.format(which)}: choose less than "
                        f"{min(train.size)}"
                    )
        return dataclasses.replace(self, img_size=size, augment=augment, warmup_epochs=self.warmup)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """The fields in which a recipe that a file holds differs from this one."""
        stored, own = stored_recipe(stored), self.to_dict()
        return [
            key
            for key in own | stored
            if own.get(key) != stored[key] and not (key == "data" and _same_path(own[key], stored[key]))
        ]

    def _marks(self, before: Mapping[str, Any], but: Iterable[str] = ()) -> dict[str, str]:
        """{"epochs": "epochs=90"}: what differs from before, an option under its own name."""
        marks, now = {}, self.to_dict()
        for key, value in now.items():
            if key == "options":
                for option, choice in value.items():
                    if option not in before[key] or before[key][option] != choice:
                        marks[option] = f"{option}={_short(choice)}"
                marks |= {option: f"{option}=default" for option in before[key].keys() - value.keys()}
            elif value != before[key] and key not in ("name", "seed", "fold", *but):
                marks[key] = f"{key}={self.dataset if key == 'data' else _short(value)}"
        return marks


def stored_recipe(written: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as a file holds it, whole: a field younger than the file has the default of that time, one of a table as
    well, and a retired field stays only if it says something."""
    known = _types(Recipe)
    renamed = {"image_size": "img_size"}  # as the recipes of the shipped weights have it
    written = {renamed.get(key, key): value for key, value in written.items()}
    whole = _defaults() | {"warmup_epochs": WARMUP}
    whole |= {key: value for key, value in written.items() if key in known or value}
    for key, table in TABLES.items():
        if isinstance(whole[key], dict):
            whole[key] = dataclasses.asdict(table()) | whole[key]
    return whole


TABLES: dict[str, Any] = {"augment": Augmentation, "adversary": Adversary}


def measured_on(recipe: Mapping[str, Any]) -> str:
    """What kind of images the accuracy of a run is of, in a word."""
    return "held-out" if recipe["held_out"] or recipe["folds"] else "test"


def run_name(recipe: Mapping[str, Any]) -> str:
    """What the files of a run are called: paper-seed0, mine+folds=5-fold2-seed0."""
    return recipe["name"] + (f"-fold{recipe['fold']}" if recipe["fold"] else "") + f"-seed{recipe['seed']}"


def recipe_folder() -> Path:
    """recipes/ of the installed package, or of the source tree."""
    package = Path(__file__).parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def list_recipes() -> list[str]:
    """Names that `load_recipe` takes, such as paper/cifar10/mspcaps_t."""
    folder = recipe_folder()
    names = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.toml")]
    return sorted(name.as_posix() for name in names if name.parts[0] != "sweeps")


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by its name under recipes/, or from a TOML file; unless it sets a name, that of the file is used."""
    path = Path(name).expanduser()
    if path.suffix != ".toml":
        path = recipe_folder() / f"{name}.toml"
        if not path.is_file():
            hint = nearest(str(name), list_recipes(), "`mspcaps train --list` shows them.")
            raise MspcapsError(f"there is no recipe {str(name)!r}: {hint}")
    values = {"name": path.stem, **read_toml(path, "the recipe")}
    return Recipe(**_checked(values, Recipe, str(path)))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MspcapsError(f"cannot read {what} {path}: {reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MspcapsError(f"{path} is not a valid TOML file: {error}") from error


def _named(base: str, marks: Mapping[str, str]) -> str:
    """paper, {"epochs": "epochs=90"} -> paper+epochs=90; a long one is cut and told apart by a checksum."""
    name = "+".join([base, *(marks[key] for key in sorted(marks))])
    if len(name) <= MAX_NAME // 2:
        return name
    return f"{name[: MAX_NAME // 2]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _same_path(data: str, other: str) -> bool:
    """One folder may be written in several ways."""
    return (
        not {data, other} & CATALOG.keys() and Path(data).expanduser().resolve() == Path(other).expanduser().resolve()
    )


def _short(value: Any) -> str:
    """Fit for the name of a folder."""
    if isinstance(value, dict):  # younger fields of a table are left out when they are off: names stay what they were
        return ",".join(f"{key}{item}" for key, item in value.items() if item or key in ("crop", "flip", "rotate"))
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str) and {*value} & {*NOT_IN_NAMES}:  # a path: most weights are called last, so it needs more
        return f"{Path(value).stem}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"
    return str(value)


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    """Field -> type. Reading hints takes longer than all the rest of a recipe, and a report reads thousands."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def _defaults() -> dict[str, Any]:
    """As JSON holds them."""
    values = {entry.name: entry.default for entry in fields(Recipe)}
    return values | {"options": {}, "lr_steps": []}


def _checked(values: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    """Values for the fields of a dataclass: a misspelt key or a wrong type must not silently train something else."""
    known, checked = _types(kind), {}
    for key, value in values.items():
        if key not in known:
            hint = nearest(key, known, f"the keys are {', '.join(sorted(known))}.")
            raise MspcapsError(f"{where} has no {key!r}: {hint}")
        checked[key] = _converted(key, value, known[key], where)
    return checked


def _converted(key: str, value: Any, kind: Any, where: str) -> Any:
    """A value of the type that a field has; a table becomes an Augmentation or an Adversary, a list a tuple."""
    union = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    for one in union:
        origin = typing.get_origin(one) or one
        if origin is Literal:
            if isinstance(value, str) and value in typing.get_args(one):
                return value
        elif key in TABLES and isinstance(value, dict):
            return TABLES[key](**_checked(value, TABLES[key], f"{where}, {key}"))
        elif origin is tuple and isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        elif type(value) is origin or (type(value) is int and origin is float):
            return dict(value) if origin is dict else value
    shown, wanted = " ".join(reprlib.repr(value).split()), union[0]  # a tensor would fill the screen
    if typing.get_origin(wanted) is Literal:
        choices = typing.get_args(wanted)
        hint = nearest(str(value), choices, f"choose {', '.join(choices[:-1])} or {choices[-1]}")
        raise MspcapsError(f"{where}: there is no {key} {shown}: {hint}")
    words = {"dict": "a table", "tuple": "a list of whole numbers"}
    words |= {table.__name__: f"a table of {', '.join(_types(table))}" for table in TABLES.values()}
    name = (typing.get_origin(wanted) or wanted).__name__
    raise MspcapsError(f"{where}: {key} must be {words.get(name, name)}, not {shown}")
