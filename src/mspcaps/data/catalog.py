"""The catalog of data sets, read from catalog.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mspcaps.errors import MspcapsError, nearest

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of the training images."""

    crop: int = 0
    """Padding in pixels before a random crop."""
    flip: bool = False
    """Flip images horizontally at random."""
    rotate: float = 0.0
    """Largest angle of a random rotation, in degrees."""
    alternate_flip: bool = False
    """With flip: flip every image in every other epoch, from a random start, instead of by chance."""
    cutout: int = 0
    """Side in pixels of a grey square that covers part of every image, at random."""
    colour: float = 0.0
    """Change brightness, contrast and saturation by random factors between 1 - colour and 1 + colour."""
    sharpness: float = 0.0
    """Change sharpness by a random factor between 1 - sharpness (blurred) and 1 + sharpness."""
    mixup: float = 0.0
    """Mix every image and its label with those of a neighbour, in shares drawn from Beta(mixup, mixup)."""

    def __post_init__(self) -> None:
        for name in ("crop", "rotate", "cutout", "colour", "sharpness", "mixup"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise MspcapsError(f"augment.{name} is {getattr(self, name)}, but must be a non-negative number")
        for name in ("colour", "sharpness"):
            if getattr(self, name) > 1:
                raise MspcapsError(f"augment.{name} is {getattr(self, name)}, but must be at most 1")
        if self.alternate_flip and not self.flip:
            raise MspcapsError("augment.alternate_flip is set, but augment.flip is not: set flip as well")
        if self.rotate > 180:
            raise MspcapsError(
                f"augment.rotate is {self.rotate}, but must be at most 180, which covers every direction"
            )


@dataclass(frozen=True)
class Web:
    """Files at an address of the data set's publisher, or of an institution that hosts it for them."""

    address: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Package:
    """A package, fetched by the machine's own client from the registry that the client is configured for."""

    client: str
    package: str

    def __str__(self) -> str:
        return f"{self.client} package {self.package}"


@dataclass(frozen=True)
class Variant:
    """One accepted version of the arrays. `sha256` is empty if only the raw files have published checksums."""

    provenance: str
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """One data set. `raw` maps the name of each raw file, uncompressed, to "md5:..." or "sha256:..."."""

    name: str
    title: str
    classes: tuple[str, ...]
    channels: int
    native_size: tuple[int, int]
    train: int
    test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augmentation
    licence: str
    variants: tuple[Variant, ...]
    sources: tuple[Web | Package, ...] = ()
    raw: Mapping[str, str] = field(default_factory=dict)
    img_size: tuple[int, int] = (32, 32)
    derived_from: str = ""  # the set of the catalog whose images it is made from


def _facts(name: str, values: dict[str, Any]) -> Facts:
    """A table of catalog.toml; its lists become tuples."""
    tables: dict[str, Any] = {
        "augment": Augmentation(**values.pop("augment")),
        "variants": tuple(Variant(**variant) for variant in values.pop("variants")),
        "sources": tuple(
            Web(source["address"], tuple(source["files"])) if "address" in source else Package(**source)
            for source in values.pop("sources", ())
        ),
    }
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Facts(name=name, **plain, **tables)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CATALOG: Mapping[str, Facts] = {name: _facts(name, values) for name, values in _TABLES.items()}
SAMPLE = "fashionmnist_sample"


def facts(name: str) -> Facts:
    """The facts of a data set of the catalog."""
    if name in CATALOG:
        return CATALOG[name]
    if Path(name).is_symlink():
        raise MspcapsError(f"{name} is a link that leads nowhere, or to itself")
    hint = nearest(name.lower().replace("-", ""), CATALOG, f"the data sets are {', '.join(CATALOG)}.")
    raise MspcapsError(f"there is no data set, folder or .npz file {name!r}: {hint}")
