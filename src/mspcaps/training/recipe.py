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

from mspcaps.data.catalog import CATALOG, Augmentation
from mspcaps.errors import MspcapsError, nearest, reason
from mspcaps.training.limits import check_numbers

CUSTOM = "custom"  # the name of a recipe that does not come from a file
MAX_NAME = 200  # bytes of a run's name: file systems allow 255, including suffixes
NOT_IN_NAMES = '/\\:*?"<>|'  # characters that some file system refuses
WARMUP = 5  # epochs of warm-up in the paper


@dataclass(frozen=True)
class Adversary:
    """The attack that a model is trained against."""

    kind: Literal["pgd", "trades"] = "pgd"
    """pgd: learn from the attacked images; trades: learn from the clean ones, and to answer the same under attack."""
    eps: float = 8.0
    """Largest change of a pixel, in 255ths."""
    step_size: float = 2.0
    """Change of a pixel in one step of the attack, in 255ths."""
    steps: int = 10
    """Steps of the attack on every batch."""
    beta: float = 6.0
    """Weight of the answer under attack, for trades."""
    loss: Literal["cross_entropy", "own"] = "cross_entropy"
    """Training loss: cross-entropy, for capsules on the log-odds of their lengths, or the family's own loss."""

    def __post_init__(self) -> None:
        for name in ("eps", "step_size"):
            if not 0.1 <= getattr(self, name) <= 255:  # a smaller one is surely a fraction of 1: no attack at all
                raise MspcapsError(
                    f"adversary.{name} is {getattr(self, name)}, but must lie between 0.1 and 255, in 255ths: write 8 "
                    "for 8/255"
                )
        if not 0 < self.beta < math.inf:
            raise MspcapsError(f"adversary.beta is {self.beta}, but must be a positive number")
        if self.steps < 1:
            raise MspcapsError(f"adversary.steps is {self.steps}, but must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """One training run. Equal recipes compute the same thing, up to rounding."""

    model: str = "mspcaps_t"
    """Name of a registered model."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the model's family, such as iterations=3."""
    data: str = "cifar10"
    """Name of a data set, or path of an .npz file or of a folder with one subfolder per class."""
    name: str = ""
    """Name of the run in paths and in the ledger; empty: `custom` and the fields that differ from the defaults."""
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
    """Whether weight decay applies to biases, norm scales and other vectors too."""
    momentum: float = 0.9
    """Momentum of SGD and Muon."""
    nesterov: bool = False
    """Nesterov momentum, for SGD."""
    muon_lr: float = 0.0
    """Peak learning rate of Muon, for convolutions and linear layers outside the classifier; 0: no Muon."""
    schedule: Literal["cosine", "exponential", "steps", "constant"] = "cosine"
    """How the learning rate decays after the warm-up."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up; default: 5, or a tenth of all epochs if that is fewer."""
    warmup_start: float = 0.1
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    min_lr: float = 1e-6
    """Learning rate that the cosine decays to, and that no other schedule falls below."""
    lr_gamma: float = 0.1
    """Factor on the learning rate, after every epoch (exponential) or at each of lr_steps (steps)."""
    lr_steps: tuple[int, ...] = ()
    """Epochs after which the schedule `steps` multiplies the learning rate by lr_gamma."""
    clip_grad: float = 0.0
    """Largest global norm of the gradients, which are scaled down to it; 0: no clipping."""
    precision: Literal["bf16", "fp32"] | None = None
    """Precision of the model's computations; default: bf16 on a GPU that supports it, fp32 elsewhere."""
    img_size: int | None = None
    """Side length in pixels that images are resized to (square); default: that of the data set."""
    augment: Augmentation | None = None
    """Augmentation of the training images (crop, flip, colour and more); default: that of the data set."""
    adversary: Adversary | None = None
    """Adversarial training: attack every batch before learning from it."""
    balance: bool = False
    """Draw every class equally often in an epoch, no matter how many images it has."""
    init: str = ""
    """Initial weights: a shipped name such as mspcaps_t.cifar10, or a weights file; empty: train from scratch."""
    ema: float = 0.0
    """Decay per step of the moving average of the weights, which is then evaluated and saved; 0: no average."""
    label_smoothing: float = 0.0
    """Share of every label that is spread evenly over all classes; 0.1 is usual."""
    teacher: str = ""
    """Weights of a model to learn from, too: a shipped name such as mspcaps_l.cifar10, or a weights file."""
    teacher_weight: float = 0.5
    """Weight of the teacher's answers in the loss; the labels get the rest."""
    temperature: float = 4.0
    """Divides the logits of teacher and model before they are compared; the higher, the more unlikely classes count."""
    sync_batchnorm: bool = True
    """With several processes, compute BatchNorm statistics over the whole batch; false: over each process's share."""
    skip_broken: bool = False
    """Leave out and report the pictures of a folder that cannot be read; otherwise they are an error."""
    validation: int = 0
    """Training images held out to choose the epoch, so that the test set is used once; 0: the data set's own if any."""
    patience: int = 0
    """Stop after this many epochs in a row without improvement on the validation images; 0: train all epochs."""
    held_out: int = 0
    """Measure on this many held-out training images instead of the test set, to choose settings."""
    folds: int = 0
    """Cross-validation: split the training images into this many folds and measure on one instead of the test set."""
    fold: int = 0
    """The fold to measure on, from 1 to folds; the others are trained on."""
    seed: int = 0
    """Determines the initial weights, image order, augmentation and dropout."""

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        for name, value in _checked(vars(self), Recipe, "the recipe").items():
            object.__setattr__(self, name, value)
        check_numbers(self)
        if not self.name:
            object.__setattr__(self, "name", _tagged(CUSTOM, self._tags(_defaults(), ignore=("model", "data"))))
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
        path = Path(os.path.abspath(Path(self.data).expanduser()))  # not resolved: a link keeps its own name
        name = path.stem if path.suffix.lower() == ".npz" else path.name
        return f"own-{name}" if name in CATALOG else name  # a folder may share its name with a published set

    @property
    def warmup(self) -> int:
        """Epochs of warm-up; the default must not take up most of a short run."""
        return min(WARMUP, self.epochs // 10) if self.warmup_epochs is None else self.warmup_epochs

    @property
    def run_name(self) -> str:
        return run_name(vars(self))

    @property
    def run_path(self) -> Path:
        """Where a run's files are, below the folder for weights or that of the ledger."""
        return Path(self.dataset, self.model, self.run_name)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON stores it."""
        return dataclasses.asdict(self) | {"lr_steps": list(self.lr_steps)}

    def replace(self, **changes: Any) -> "Recipe":
        """The recipe with some fields changed. Changes other than seed and fold become part of its name."""
        changes = _checked(changes, Recipe, "the recipe")
        base, *tags = self.name.split("+")
        if changes.get("name"):
            return dataclasses.replace(self, **changes)
        if base == CUSTOM:
            return dataclasses.replace(self, **changes | {"name": ""})
        changed = dataclasses.replace(self, **changes)
        if not (new := changed._tags(self.to_dict())):
            return changed  # a long name that was cut must not be cut again
        kept = {tag.partition("=")[0]: tag for tag in tags}
        return dataclasses.replace(changed, name=_tagged(base, kept | new))

    def resolve(self, size: tuple[int, int] | None = None) -> "Recipe":
        """The recipe with its defaults filled in: the warm-up, and those of the data set, from the catalog or from the
        size of the training images. For custom data of unknown size, the latter stay open."""
        side, augment = self.img_size, self.augment
        if self.data in CATALOG:
            side, augment = side or CATALOG[self.data].img_size[0], augment or CATALOG[self.data].augment
        if size is not None:
            side = size[0] if size[0] == size[1] else side
            augment = augment or Augmentation(crop=min(size) // 8)  # a small shift changes no class
            for name in ("crop", "cutout"):
                if (pixels := getattr(augment, name)) >= min(size):
                    raise MspcapsError(
                        f"augment.{name} is {pixels}, which can hide all of {size[0]} x {size[1]} pixels: "
                        f"choose less than {min(size)}"
                    )
        return dataclasses.replace(self, img_size=side, augment=augment, warmup_epochs=self.warmup)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """The fields in which a recipe from a file differs from this one."""
        stored, own = stored_recipe(stored), self.to_dict()
        return [
            key
            for key in own | stored
            if own.get(key) != stored[key] and not (key == "data" and _same_path(own[key], stored[key]))
        ]

    def _tags(self, before: Mapping[str, Any], ignore: Iterable[str] = ()) -> dict[str, str]:
        """{"epochs": "epochs=90"}: the fields that differ from before, and each option of the model by its own name."""
        tags = {}
        for key, value in self.to_dict().items():
            if key == "options":
                for option, choice in value.items():
                    if option not in before[key] or before[key][option] != choice:
                        tags[option] = f"{option}={_short(choice)}"
                tags |= {option: f"{option}=default" for option in before[key].keys() - value.keys()}
            elif value != before[key] and key not in ("name", "seed", "fold", *ignore):
                tags[key] = f"{key}={self.dataset if key == 'data' else _short(value)}"
        return tags


def stored_recipe(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe from a file, completed: fields newer than the file, in tables too, get the value that runs had then, and
    a retired field is kept only if it is set."""
    types = _types(Recipe)
    renamed = {"image_size": "img_size"}  # the recipes of the shipped weights have the old name
    stored = {renamed.get(key, key): value for key, value in stored.items()}
    recipe = _defaults() | {"warmup_epochs": WARMUP}
    recipe |= {key: value for key, value in stored.items() if key in types or value}
    for key, table in TABLES.items():
        if isinstance(recipe[key], dict):
            recipe[key] = dataclasses.asdict(table()) | recipe[key]
    return recipe


TABLES: dict[str, Any] = {"augment": Augmentation, "adversary": Adversary}


def measured_on(recipe: Mapping[str, Any]) -> str:
    """The kind of images that a run's accuracy is measured on, in a word."""
    return "held-out" if recipe["held_out"] or recipe["folds"] else "test"


def run_name(recipe: Mapping[str, Any]) -> str:
    """The name of a run's files: paper-seed0, mine+folds=5-fold2-seed0."""
    return recipe["name"] + (f"-fold{recipe['fold']}" if recipe["fold"] else "") + f"-seed{recipe['seed']}"


def recipe_folder() -> Path:
    """recipes/ in the installed package, or in the source tree."""
    package = Path(__file__).parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def list_recipes() -> list[str]:
    """Names that `load_recipe` takes, such as paper/cifar10/mspcaps_t."""
    folder = recipe_folder()
    names = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.toml")]
    return sorted(name.as_posix() for name in names if name.parts[0] != "sweeps")


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by its name under recipes/, or from a TOML file; its name is that of the file unless it sets one."""
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


def _tagged(base: str, tags: Mapping[str, str]) -> str:
    """paper, {"epochs": "epochs=90"} -> paper+epochs=90; a long name is cut and made unique by a checksum."""
    name = "+".join([base, *(tags[key] for key in sorted(tags))])
    if len(name) <= MAX_NAME // 2:
        return name
    return f"{name[: MAX_NAME // 2]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _same_path(data: str, other: str) -> bool:
    """Whether both name the same folder or file, which may be spelled in several ways."""
    return (
        not {data, other} & CATALOG.keys() and Path(data).expanduser().resolve() == Path(other).expanduser().resolve()
    )


def _short(value: Any) -> str:
    """A value as text for the name of a folder."""
    if isinstance(value, dict):  # newer fields of a table are left out when they are off, so that old names stay valid
        return ",".join(f"{key}{item}" for key, item in value.items() if item or key in ("crop", "flip", "rotate"))
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str) and {*value} & {*NOT_IN_NAMES}:  # a path; a checksum, as most weights are called last
        return f"{Path(value).stem}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"
    return str(value)


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    """Field -> type. Cached: resolving hints takes longer than the rest of a recipe, and a report reads thousands."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def _defaults() -> dict[str, Any]:
    """The defaults as JSON stores them."""
    values = {entry.name: entry.default for entry in fields(Recipe)}
    return values | {"options": {}, "lr_steps": []}


def _checked(values: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    """Values for the fields of a dataclass: a misspelt key or a wrong type must not silently train something else."""
    types, checked = _types(kind), {}
    for key, value in values.items():
        if key not in types:
            hint = nearest(key, types, f"the keys are {', '.join(sorted(types))}.")
            raise MspcapsError(f"{where} has no {key!r}: {hint}")
        checked[key] = _converted(key, value, types[key], where)
    return checked


def _converted(key: str, value: Any, kind: Any, where: str) -> Any:
    """The value as its field's type: a table becomes an Augmentation or an Adversary, a list becomes a tuple."""
    union = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    for member in union:
        origin = typing.get_origin(member) or member
        if origin is Literal:
            if isinstance(value, str) and value in typing.get_args(member):
                return value
        elif key in TABLES and isinstance(value, dict | TABLES[key]):
            table = value if isinstance(value, dict) else vars(value)
            return TABLES[key](**_checked(table, TABLES[key], f"{where}, {key}"))
        elif origin is tuple and isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        elif type(value) is origin or (type(value) is int and origin is float):
            return value if value is None else origin(value)  # 1 becomes 1.0: equal runs have one name
    text, expected = " ".join(reprlib.repr(value).split()), union[0]  # shortened: a tensor would fill the screen
    if typing.get_origin(expected) is Literal:
        choices = typing.get_args(expected)
        hint = nearest(str(value), choices, f"choose {', '.join(choices[:-1])} or {choices[-1]}")
        raise MspcapsError(f"{where}: there is no {key} {text}: {hint}")
    words = {"dict": "a table", "tuple": "a list of whole numbers"}
    words |= {table.__name__: f"a table of {', '.join(_types(table))}" for table in TABLES.values()}
    name = (typing.get_origin(expected) or expected).__name__
    raise MspcapsError(f"{where}: {key} must be {words.get(name, name)}, not {text}")
