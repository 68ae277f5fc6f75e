"""`load_dataset`: any data set, whatever its format, as an `ImageSet`; and `fingerprint`, which tells if it changed."""

import hashlib
import os
from collections import Counter
from numbers import Integral
from pathlib import Path

import numpy as np
import torch

from mspcaps.data.cache import read_cached
from mspcaps.data.catalog import CATALOG, facts
from mspcaps.data.folder import HELD_OUT, has_validation_folder, is_picture_folder, list_pictures, open_folder
from mspcaps.data.formats import check_labels, has_manifest, npz_names, read_json, read_npz, read_packed, to_nchw
from mspcaps.data.imageset import ImageSet
from mspcaps.errors import MspcapsError, reason
from mspcaps.files import ProgressFn, no_progress, sha256_of

PARTS = ("train", "val", "test")
SPLITS = (*PARTS, "all")
MAX_SIDE = 1 << 16  # pixels
MAX_READ = 256 << 20  # bytes of pictures that a fingerprint reads whole: about half a second


def load_dataset(
    name_or_path: str | Path,
    split: str = "train",
    img_size: int | tuple[int, int] | None = None,
    progress: ProgressFn = no_progress,
    skip_broken: bool = False,
) -> ImageSet:
    """Load a split (train, val, test or all) into memory: images uint8 [N, C, H, W], labels int64 [N].

    A data set of the catalog is read from the cache and resized to 32 x 32, as in its recipes, unless `img_size` is
    given. A path may be a folder with one subfolder per class, an .npz file or a folder of packed parts. Without
    `img_size` its images keep their size, except that picture files of different sizes or above 64 pixels are resized
    to a square of at most 64. If a folder has the name of a data set, write ./mnist or pass a Path.
    `progress` is called for every picture read from a folder; with `skip_broken`, pictures that cannot be read are left
    out, with a warning that names the first few.
    """
    if split not in SPLITS:
        raise MspcapsError(f'there is no split "{split}"; the splits are {", ".join(SPLITS)}')
    size = _as_size(img_size)
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        entry = facts(name_or_path)
        if split == "val":
            raise MspcapsError(f"{entry.name} has no split val: a recipe's `validation` holds out training images")
        data = _from_arrays(read_cached(entry.name, split), split, entry.classes, entry.name)
        return data.resized(size or entry.img_size)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        if isinstance(name_or_path, str) and not path.suffix and os.sep not in name_or_path:
            facts(name_or_path)  # raises with the nearest name
        raise MspcapsError(f"{path} does not exist")
    if path.is_file() and path.suffix.lower() == ".npz":
        data = _from_npz(path, split)
    elif not path.is_dir():
        raise MspcapsError(f"{path} is neither a folder nor an .npz file")
    elif has_manifest(path):
        data = _from_arrays(read_packed(path), split, None, path.name)
    else:
        pictures = open_folder(path, split, size)
        return (pictures.readable() if skip_broken else pictures).resident(progress)
    return data.resized(size) if size else data


def has_validation(name_or_path: str | Path) -> bool:
    """Whether a data set has validation images of its own, besides a test set."""
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in CATALOG or not path.exists():
        return False
    if is_picture_folder(path):
        return has_validation_folder(path)
    if path.is_file():
        return {"x_val", "x_test"} <= npz_names(path)
    if not path.is_dir():
        return False  # loading it will say what is wrong
    manifest = read_json(path / "manifest.json")
    splits = manifest.get("splits") if isinstance(manifest, dict) else None
    return isinstance(splits, dict) and {"val", "test"} <= splits.keys()


def fingerprint(name_or_path: str | Path) -> str | None:
    """A sha256 of custom images and their classes; None for a published set, which never changes, and for a missing
    path.

    For an .npz file it is that of the file, for packed parts that of their manifest. For a folder it covers the path of
    every picture and its bytes, or only its size if there are more than 256 MB in all.
    """
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in CATALOG or not path.exists():
        return None
    try:
        if path.is_file():
            return sha256_of(path)
        return sha256_of(path / "manifest.json") if has_manifest(path) else _fingerprint_pictures(path)
    except OSError as error:
        raise MspcapsError(f"cannot read {error.filename or path}: {reason(error)}") from error


def _fingerprint_pictures(root: Path) -> str:
    train, validation, test, _ = list_pictures(root, Counter())
    entries = train + validation + test  # reading refuses, or skip_broken leaves out, what cannot be opened
    pictures = sorted(Path(path) for path, _ in entries if os.access(path, os.R_OK))
    sizes = [picture.stat().st_size for picture in pictures]
    whole, digest = sum(sizes) <= MAX_READ, hashlib.sha256()
    for picture, size in zip(pictures, sizes, strict=True):
        content = sha256_of(picture) if whole else size
        name = picture.relative_to(root).as_posix().encode("utf-8", "surrogateescape")
        digest.update(name + f"\0{content}\0".encode())
    return digest.hexdigest()


def _from_arrays(arrays: dict[str, np.ndarray], split: str, classes: tuple[str, ...] | None, name: str) -> ImageSet:
    """x_*, y_* -> one split. Without class names, classes are called by their numbers in all splits; without a test
    split, the validation images are the test images."""
    if "x_test" not in arrays:
        new_names = {"x_val": "x_test", "y_val": "y_test"}
        arrays = {new_names.get(key, key): array for key, array in arrays.items()}
    parts = [part for part in PARTS if split in (part, "all") and f"x_{part}" in arrays]
    if not parts or any(f"y_{part}" not in arrays for part in parts):
        raise MspcapsError(
            f"{name} needs the arrays x_{split} and y_{split}; it holds {', '.join(sorted(arrays)) or 'none'}"
        )
    images, labels = [], []
    for part in parts:
        images.append(x := to_nchw(arrays[f"x_{part}"], f"{name} x_{part}"))
        labels.append(check_labels(arrays[f"y_{part}"], len(x), f"{name} y_{part}"))
        if x.shape[1:] != images[0].shape[1:]:
            raise MspcapsError(
                f"{name}: x_{parts[0]} and x_{part} have different shapes {images[0].shape} and {x.shape}"
            )
    if classes is None:
        classes = _numbered_classes(arrays, name)
    x, y = (stack[0] if len(stack) == 1 else np.concatenate(stack) for stack in (images, labels))
    return ImageSet(torch.from_numpy(x), torch.from_numpy(y), classes, name)


def _numbered_classes(arrays: dict[str, np.ndarray], name: str) -> tuple[str, ...]:
    """Names for classes that have none: "0", "1", ..."""
    labels = {
        part: np.unique(check_labels(arrays[f"y_{part}"], arrays[f"y_{part}"].size, f"{name} y_{part}")).tolist()
        for part in PARTS
        if f"y_{part}" in arrays
    }
    top = max((values[-1] for values in labels.values() if values), default=0)
    train = labels.get("train")
    if train:  # a test set alone need not contain every class: the model to be tested knows them
        for part in labels:
            if unknown := sorted(set(labels[part]) - set(train)):
                raise MspcapsError(f"{name}: y_{part} has the label {unknown[0]}, which y_train does not have")
        if gaps := sorted(set(range(top)) - set(train)):
            raise MspcapsError(
                f"{name}: labels run up to {top}, but no training image has the label {gaps[0]}: number the classes "
                "from 0 without gaps, or name them all in an array called classes"
            )
    return tuple(str(label) for label in range(top + 1))


def _from_npz(path: Path, split: str) -> ImageSet:
    """x_train, y_train, x_test, y_test and optionally x_val, y_val; or images and labels, every fifth of a class for
    testing; optionally classes."""
    arrays = read_npz(path)
    names = arrays.get("classes")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise MspcapsError(f"{path}: classes must be a list of names")
    classes = None if names is None else tuple(str(name) for name in names)
    if "images" not in arrays or "labels" not in arrays:
        return _from_arrays(arrays, split, classes, path.stem)
    labels = check_labels(arrays["labels"], len(np.atleast_1d(arrays["images"])), f"{path} labels")
    whole = _from_arrays({"x_train": arrays["images"], "y_train": labels}, "train", classes, path.stem)
    if split == "all":
        return whole
    if split == "val":
        raise MspcapsError(f"{path} has no split val: store x_train, x_val and x_test instead of images")
    test = np.concatenate([np.flatnonzero(labels == label)[HELD_OUT - 1 :: HELD_OUT] for label in np.unique(labels)])
    index = test if split == "test" else np.setdiff1d(np.arange(len(labels)), test)
    if not len(index):
        raise MspcapsError(f"{path} holds no images to test on: that takes at least {HELD_OUT} of one class")
    return whole.subset(torch.from_numpy(np.sort(index)))


def _as_size(img_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if img_size is None:
        return None
    size = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
    if len(size) != 2 or not all(isinstance(side, Integral) and side >= 1 for side in size):
        raise MspcapsError(f"the image size must be one or two positive whole numbers of pixels, not {img_size!r}")
    if max(size) > MAX_SIDE:
        raise MspcapsError(f"the image size is {max(size)} pixels, but must be at most {MAX_SIDE}")
    return int(size[0]), int(size[1])
