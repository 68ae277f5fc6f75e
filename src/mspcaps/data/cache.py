"""The cache: one uncompressed .npz per data set, x as uint8 [N, C, H, W] in native size, y as uint8 [N].

An uncompressed .npz is read at the speed of the disk, needs nothing but numpy, and its CRC reveals accidental damage on
every read; `verify` recomputes the sha256.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mspcaps.data.catalog import ARRAYS, CATALOG, SAMPLE, Facts, Variant, facts
from mspcaps.data.formats import array_sha256, read_npz, read_packed
from mspcaps.errors import MspcapsError, as_user_error
from mspcaps.files import write_atomically

SAMPLE_FOLDER = Path(__file__).parent / "sample"  # made by tools/pack_sample.py
_FETCHING = ".fetching-"


@dataclass(frozen=True)
class Status:
    """Whether a set of the catalog is ready, where it is, and how many bytes it takes there."""

    facts: Facts
    ready: bool
    path: Path
    bytes: int


def cache_root() -> Path:
    """$MSPCAPS_DATA, else mspcaps in $XDG_CACHE_HOME, else ~/.cache/mspcaps."""
    if own := os.environ.get("MSPCAPS_DATA"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path("~/.cache").expanduser()) / "mspcaps"
    except RuntimeError as error:  # a user unknown to the system, as in some containers
        raise MspcapsError("there is no home folder to keep data sets in: set MSPCAPS_DATA to a folder") from error


def cache_path(name: str) -> Path:
    """The file of a set, whether or not it exists; for the embedded sample, its folder."""
    return SAMPLE_FOLDER if facts(name).name == SAMPLE else cache_root() / f"{name}.npz"


def list_datasets() -> list[Status]:
    """All sets of the catalog."""
    statuses = []
    for entry in CATALOG.values():
        path = cache_path(entry.name)
        files = [file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
        statuses.append(Status(entry, bool(files), path, sum(file.stat().st_size for file in files)))
    return statuses


def is_cached(name: str) -> bool:
    return cache_path(name).exists()


def store(entry: Facts, arrays: Mapping[str, np.ndarray], variant: Variant) -> Path:
    """Write a data set that `match_variant` has accepted to the cache."""
    path = cache_path(entry.name)
    metadata = {"provenance": variant.provenance, "sha256": {name: array_sha256(arrays[name]) for name in ARRAYS}}
    content = {name: arrays[name] for name in ARRAYS} | {"about": np.array(json.dumps(metadata))}
    write_atomically(path, lambda file: np.savez(file, **content))  # type: ignore[arg-type]
    return path


def read_cached(name: str, split: str) -> dict[str, np.ndarray]:
    """Images uint8 [N, C, H, W] as x_*, labels uint8 [N] as y_*; `split` is train, test or all."""
    return _read(name, tuple(array for array in ARRAYS if split in (array[2:], "all")))


def provenance(name: str) -> str:
    """Which variant of the set is cached, in one sentence."""
    return str(_metadata(name)["provenance"])


def verify(name: str) -> str:
    """Recompute the sha256 of a cached set and return its provenance; a mismatch is an error."""
    entry, metadata, arrays = facts(name), _metadata(name), _read(name, ARRAYS)
    expected = next((v.sha256 for v in entry.variants if v.provenance == metadata["provenance"]), None)
    if expected is None:
        raise MspcapsError(
            f"{cache_path(name)} has a format unknown to this version: run `mspcaps data get {name}` again"
        )
    for array in ARRAYS:
        # for the official SVHN the catalog has no sha256 of the arrays: use those stored after its md5 check
        if array_sha256(arrays[array]) != (expected or metadata["sha256"])[array]:
            raise MspcapsError(
                f"{cache_path(name)} is damaged: {array} does not match its sha256; delete it and fetch it again"
            )
    return str(metadata["provenance"])


def match_variant(entry: Facts, arrays: Mapping[str, np.ndarray], raw_verified: bool, where: str) -> Variant:
    """The variant that these arrays match. `raw_verified`: they come from raw files with the published checksums."""
    actual = {name: array_sha256(arrays[name]) for name in ARRAYS}
    for variant in entry.variants:
        if variant.sha256 == actual or (raw_verified and not variant.sha256):
            return variant
    accepted = [variant.sha256 for variant in entry.variants if variant.sha256]
    wrong = [name for name in ARRAYS if all(sums[name] != actual[name] for sums in accepted)]
    raise MspcapsError(
        f"{where} is not {entry.title} as published: the sha256 differs for {', '.join(wrong or ARRAYS)}"
    )


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder beside the cached files, removed afterwards whatever happens, as are leftovers of killed processes."""
    root = cache_root()
    with as_user_error(f"cannot write to the cache folder {root}"):
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f"{_FETCHING}*"):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                if time.time() - old.stat().st_mtime > 86400:
                    shutil.rmtree(old, ignore_errors=True)
        folder = tempfile.TemporaryDirectory(prefix=_FETCHING, dir=root, ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


def _metadata(name: str) -> dict[str, Any]:
    if name == SAMPLE:
        variant = facts(name).variants[0]
        return {"provenance": variant.provenance, "sha256": variant.sha256}
    text = str(_read(name, ("about",))["about"])
    try:
        metadata = json.loads(text)
        return {"provenance": metadata["provenance"], "sha256": metadata["sha256"]}
    except (ValueError, KeyError, TypeError) as error:
        raise MspcapsError(
            f"{cache_path(name)} is damaged: it does not say where its data came from; fetch it again"
        ) from error


def _read(name: str, members: tuple[str, ...]) -> dict[str, np.ndarray]:
    path = cache_path(name)
    if name == SAMPLE:
        packed = read_packed(path)
        return {member: packed[member].astype(np.uint8, copy=False) for member in members}
    if not path.exists():
        raise MspcapsError(f"{facts(name).title} is not on this machine; run `mspcaps data get {name}` first")
    try:
        return read_npz(path, members)
    except MspcapsError as error:
        raise MspcapsError(f"{error}; delete it and run `mspcaps data get {name}` again") from error
