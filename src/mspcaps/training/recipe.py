"""A recipe: everything that decides what a run computes. The defaults are the paper's."""

import dataclasses
import functools
import hashlib
import math
import reprlib
import tomllib
import typing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mspcaps.data.catalog import CATALOG, Augmentation
from mspcaps.errors import MspcapsError, nearest

LONGEST_NAME = 200  # bytes of a run's name: file systems take 255, with suffixes
NOT_IN_NAMES = '/\\:*?"<>|'  # somewhere a file system refuses them
MAX_IMG_SIZE = 2048  # pixels a side; beyond that it is a slip of the pen


@dataclass(frozen=True)
class Recipe:
    """One training run. Equal recipes compute the same thing, up to the rounding of the machine."""

    model: str = "mspcaps_t"
    """Name of a registered model."""
    data: str = "cifar10"
    """Data set name, or path of an .npz file or of a folder with one subfolder per class."""
    name: str = ""
    """Name of the run in paths and in the ledger; empty: `paper`, or `custom` for your own images."""
    epochs: int = 300
    """Passes over the training images."""
    batch_size: int = 128
    """Images per step, summed over all processes; the last, partial batch of an epoch is dropped."""
    lr: float = 5e-4
    """Peak learning rate of AdamW."""
    weight_decay: float = 1e-4
    """Decoupled weight decay, applied to every parameter."""
    warmup_epochs: int = 5
    """Epochs of linear warm-up."""
    warmup_start: float = 0.1
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    min_lr: float = 1e-6
    """Learning rate that the cosine decays to."""
    img_size: int | None = None
    """Images are resized to this side length (square); default: that of the data set."""
    augment: Augmentation | None = None
    """Training augmentation (crop, flip, rotate); default: that of the data set."""
    balance: bool = False
    """Draw every class equally often in an epoch, however many images it has."""
    init: str = ""
    """Initial weights: a shipped name such as mspcaps_t.cifar10, or a weights file; empty: train from scratch."""
    initial_scale: dict = field(default_factory=dict)
    """Factors applied to the initial weights, by kind: votes, positions, convolutions; 1 if not given."""
    held_out: int = 0
    """Measure on this many held-out training images instead of the test set, to choose settings."""
    seed: int = 0
    """Determines initial weights, image order and augmentation."""

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        if isinstance(self.augment, dict):
            augment = Augmentation(**_checked(self.augment, Augmentation, "the recipe, augment"))
            object.__setattr__(self, "augment", augment)
        _checked(vars(self), Recipe, "the recipe")
        if not self.name:
            object.__setattr__(self, "name", "paper" if self.data in CATALOG else "custom")
        for name, least in (("epochs", 1), ("batch_size", 2), ("warmup_epochs", 0), ("held_out", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise MspcapsError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        if self.img_size is not None and not 1 <= self.img_size <= MAX_IMG_SIZE:
            raise MspcapsError(f"img_size is {self.img_size}, but must lie between 1 and {MAX_IMG_SIZE}")
        if self.seed >= 2**63:
            raise MspcapsError(f"seed is {self.seed}, but must be less than 2^63")
        if not self.name.isprintable() or {*self.name} & {*NOT_IN_NAMES}:
            raise MspcapsError(
                f"the name {self.name!r} is not a valid folder name on every system: leave out {' '.join(NOT_IN_NAMES)}"
            )
        if len(self.run_name.encode()) > LONGEST_NAME:
            raise MspcapsError(f"the name {reprlib.repr(self.name)} is too long for a folder: shorten it")
        for name in ("lr", "weight_decay", "min_lr", "warmup_start"):
            if not 0 <= getattr(self, name) < math.inf:
                raise MspcapsError(f"{name} is {getattr(self, name)}, but must be a non-negative number")
        if self.warmup_start > 1:
            raise MspcapsError(f"warmup_start is {self.warmup_start}, but must be at most 1: it is a fraction of lr")

    @property
    def dataset(self) -> str:
        """The data set's name in paths and tables."""
        if self.data in CATALOG:
            return self.data
        path = Path(self.data).expanduser().resolve()
        name = path.stem if path.suffix.lower() == ".npz" else path.name
        return f"own-{name}" if name in CATALOG else name  # a folder that is called like a published set is not it

    @property
    def run_name(self) -> str:
        return f"{self.name}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def resolve(self) -> "Recipe":
        return filled(self)


def filled(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of its data set filled in, as stored in the ledger."""
    known = CATALOG.get(recipe.data)
    if known is None:
        return recipe
    size = recipe.img_size or known.img_size[0]
    return replace(recipe, augment=recipe.augment or known.augment, img_size=size)


def measured_on(held_out: int) -> str:
    """What kind of images a run's accuracy is of, in a word."""
    return "held-out" if held_out else "test"


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
    try:
        return recipe_from_dict({"name": path.stem} | tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise MspcapsError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MspcapsError(f"{path} is not a valid TOML file: {error}") from error


def recipe_from_dict(values: dict[str, Any], where: str) -> Recipe:
    return Recipe(**checked_fields(values, where))


def checked_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Fields of a recipe as a file has them. Names and types: a misspelt key must not silently train something else."""
    values = dict(values)
    augment = values.pop("augment", None)
    arguments = _checked(values, Recipe, where)
    if augment is not None:
        if not isinstance(augment, dict):
            raise MspcapsError(f"{where}: augment must be a table of crop, flip and rotate")
        arguments["augment"] = Augmentation(**_checked(augment, Augmentation, f"{where}, augment"))
    return arguments


def override(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with some fields changed; changes other than the seed become part of its name."""
    known = {entry.name for entry in fields(Recipe)}
    for key in changes:
        if key not in known:
            raise MspcapsError(_unknown(key, known, "the recipe"))
    changed = {key: value for key, value in changes.items() if getattr(recipe, key) != value}
    marks = [
        f"{key}={_short(value)}"
        for key, value in sorted(changed.items())
        if key not in ("seed", "name", "model", "data")
    ]
    name = "+".join([recipe.name, *marks])
    if len(name) > LONGEST_NAME // 2:
        name = f"{name[: LONGEST_NAME // 2]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    name = changed.pop("name", "") or name
    return replace(recipe, name=name, **changed)


def differences(recipe: Recipe, written: dict[str, Any]) -> list[str]:
    """The fields in which a recipe differs from one that a file holds."""
    written, mine = with_defaults(written), recipe.to_dict()
    return [key for key in mine if mine[key] != written[key] and not (key == "data" and _same(mine[key], written[key]))]


def with_defaults(written: dict[str, Any]) -> dict[str, Any]:
    """A recipe as a file holds it, whole: a field younger than the file had its default, one of `augment` as well."""
    if "image_size" in written:  # as it was called when the first weights were shipped
        written = {"img_size" if key == "image_size" else key: value for key, value in written.items()}
    whole = Recipe().to_dict() | written
    if isinstance(whole["augment"], dict):
        whole["augment"] = dataclasses.asdict(Augmentation()) | whole["augment"]
    return whole


def stored_recipe(written: dict[str, Any]) -> dict[str, Any]:
    return with_defaults(written)


def _same(data: str, other: str) -> bool:
    """One folder may be written in several ways."""
    return (
        not {data, other} & CATALOG.keys() and Path(data).expanduser().resolve() == Path(other).expanduser().resolve()
    )


def _short(value: Any) -> str:
    """Fit for the name of a folder."""
    if isinstance(value, Augmentation):
        return ",".join(f"{entry.name}{getattr(value, entry.name)}" for entry in fields(value))
    if isinstance(value, dict):
        return ",".join(f"{key}{item}" for key, item in sorted(value.items()))
    if isinstance(value, str) and {*value} & {*NOT_IN_NAMES}:  # a path: most weights are called last, so it needs more
        return f"{Path(value).stem}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"
    return str(value)


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    """Field -> type. Reading hints takes longer than all the rest of a recipe, and a report reads thousands."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def _checked(values: dict[str, Any], kind: type, where: str) -> dict[str, Any]:
    known = _types(kind)
    for key, value in values.items():
        if key not in known:
            raise MspcapsError(_unknown(key, set(known), where))
        allowed = typing.get_args(known[key]) or (known[key],)
        fits = type(value) in allowed or (type(value) is int and float in allowed)
        if not fits:
            shown = " ".join(reprlib.repr(value).split())  # a tensor would fill the screen
            raise MspcapsError(f"{where}: {key} must be {allowed[0].__name__}, not {shown}")
    return values


def _unknown(key: str, known: set[str], where: str) -> str:
    hint = nearest(key, known, f"the keys are {', '.join(sorted(known))}.")
    return f"{where} has no {key!r}: {hint}"
