"""Convert the raw files of a data set, in any form that it is distributed in, to its four arrays."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mspcaps.data.archives import read_gzip, unpack_tar
from mspcaps.data.cache import match_variant, read_cached, temporary_folder
from mspcaps.data.catalog import ARRAYS, IDX_FILES, Facts, Variant, facts
from mspcaps.data.formats import (
    check_digest,
    check_labels,
    cifar_batch_from_mosaic,
    has_manifest,
    parse_cifar_batch,
    parse_idx,
    parse_svhn,
    read_json,
    read_npz,
    read_packed,
    to_nchw,
)
from mspcaps.data.pose import DSPRITES, make_dsprites_pose, make_mnist40
from mspcaps.errors import MspcapsError

Arrays = dict[str, np.ndarray]
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def convert(entry: Facts, path: Path) -> tuple[Arrays, Variant]:
    """Read a set from a folder of raw files or packed parts, or from an .npz; all known checksums are verified."""
    if not path.exists():
        raise MspcapsError(f"{path} does not exist")
    raw_verified = False
    if path.is_file() and path.suffix.lower() == ".npz" and path.name != DSPRITES:
        arrays = read_npz(path)
    elif has_manifest(path):
        arrays = read_packed(path)
    else:
        arrays, raw_verified = _READERS[entry.name](entry, _index(path), path), True
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise MspcapsError(f"{path} lacks {', '.join(missing)}")
    for split in ("train", "test"):
        images = to_nchw(arrays[f"x_{split}"], f"{path} x_{split}")
        labels = check_labels(arrays[f"y_{split}"], len(images), f"{path} y_{split}")
        arrays[f"x_{split}"], arrays[f"y_{split}"] = images, labels.astype(np.uint8)
    return arrays, match_variant(entry, arrays, raw_verified, str(path))


def derive(entry: Facts) -> tuple[Arrays, Variant]:
    """Make a derived set from the cached set that it is derived from."""
    arrays = make_mnist40(read_cached(entry.derived_from, "all"))  # the only one so far
    return arrays, match_variant(entry, arrays, False, f"the set made from {facts(entry.derived_from).title}")


def _index(path: Path) -> dict[str, Path]:
    """Every file below the path by its bare name, the topmost first; links to folders are not followed."""
    if path.is_file():
        return {path.name: path}
    files: dict[str, Path] = {}
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in names:
            files.setdefault(name, Path(folder, name))
    return files


def _idx(entry: Facts, files: Mapping[str, Path], path: Path) -> Arrays:
    arrays = []
    for name in IDX_FILES:
        spellings = [variant + end for variant in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
        file = next((files[spelling] for spelling in spellings if spelling in files), None)
        if file is None:
            raise MspcapsError(f"{path} holds no {name} (or {name}.gz)")
        content = read_gzip(file)
        check_digest(content, entry.raw[name], str(file))
        arrays.append(parse_idx(content))
    return dict(zip(ARRAYS, arrays, strict=True))


def _cifar10(entry: Facts, files: Mapping[str, Path], path: Path) -> Arrays:
    if all(f"{batch}.png" in files for batch in _BATCHES):
        return _cifar_arrays(entry, lambda batch: _cifar_mosaic(files, batch))
    if all(f"{batch}.bin" in files for batch in _BATCHES):
        return _cifar_arrays(entry, lambda batch: read_gzip(files[f"{batch}.bin"]))
    if archive := files.get("cifar-10-binary.tar.gz"):
        with temporary_folder() as folder:
            unpack_tar(archive, folder)
            inside = _index(folder)
            if missing := [f"{batch}.bin" for batch in _BATCHES if f"{batch}.bin" not in inside]:
                raise MspcapsError(f"{archive} lacks {', '.join(missing)}")
            return _cifar10(entry, inside, archive)
    raise MspcapsError(f"{path} holds neither cifar-10-binary.tar.gz nor data_batch_1.bin ... test_batch.bin")


def _cifar_mosaic(files: Mapping[str, Path], batch: str) -> bytes:
    """One batch of the registry package as official bytes; the package misspells the names of its label files."""
    name, first = (
        ("test_lables.json", 0) if batch == "test_batch" else ("train_lables.json", 10_000 * (int(batch[-1]) - 1))
    )
    if name not in files:
        raise MspcapsError(f"{files[f'{batch}.png'].parent} lacks {name}")
    try:
        labels = np.array(read_json(files[name])[first : first + 10_000], dtype=np.uint8)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise MspcapsError(f"{files[name]} is not a list of labels") from error
    return cifar_batch_from_mosaic(files[f"{batch}.png"], labels)


def _cifar_arrays(entry: Facts, read: Callable[[str], bytes]) -> Arrays:
    images, labels = [], []
    for batch in _BATCHES:
        content = read(batch)
        check_digest(content, entry.raw[f"{batch}.bin"], f"{batch}.bin")
        x, y = parse_cifar_batch(content)
        images.append(x)
        labels.append(y)
    train, test = np.concatenate(images[:-1]), np.ascontiguousarray(images[-1])
    return {"x_train": train, "y_train": np.concatenate(labels[:-1]), "x_test": test, "y_test": labels[-1].copy()}


def _svhn(entry: Facts, files: Mapping[str, Path], path: Path) -> Arrays:
    arrays = {}
    for split in ("train", "test"):
        name = f"{split}_32x32.mat"
        if name not in files:
            raise MspcapsError(f"{path} holds neither packed parts (manifest.json) nor {name}")
        content = read_gzip(files[name])
        check_digest(content, entry.raw[name], str(files[name]))
        arrays[f"x_{split}"], arrays[f"y_{split}"] = parse_svhn(content)
    return arrays


def _mnist40(entry: Facts, files: Mapping[str, Path], path: Path) -> Arrays:
    return make_mnist40(_idx(facts(entry.derived_from), files, path))


def _dsprites(entry: Facts, files: Mapping[str, Path], path: Path) -> Arrays:
    if DSPRITES not in files:
        raise MspcapsError(f"{path} holds no {DSPRITES}")
    return make_dsprites_pose(files[DSPRITES])


_READERS: Mapping[str, Callable[[Facts, Mapping[str, Path], Path], Arrays]] = {
    "mnist": _idx,
    "fashionmnist": _idx,
    "cifar10": _cifar10,
    "svhn": _svhn,
    "mnist40": _mnist40,
    "dsprites_pose": _dsprites,
}
