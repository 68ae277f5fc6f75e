"""A folder of pictures as a data set: ROOT/train/CLASS/*, ROOT/val/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/*.

The val folder may also be called valid or validation; without a test folder it serves as one. In a folder without
splits, about one fifth of each class is for testing: the pictures whose path below the class folder has a small sha256.
The same files are split in the same way on every machine.
"""

import contextlib
import hashlib
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mspcaps.data.catalog import CATALOG
from mspcaps.data.formats import has_manifest
from mspcaps.data.imageset import ImageSet
from mspcaps.data.pictures import (
    KINDS,
    MAX_NAMED,
    SUFFIXES,
    Skipped,
    describe_broken,
    describe_skipped,
    list_broken,
    pictures_below,
    read_header,
    read_picture,
)
from mspcaps.errors import MspcapsError, as_user_error, reason, warn
from mspcaps.files import ProgressFn, no_progress, to_utf8

T = TypeVar("T")
HELD_OUT = 5  # one picture in five is for testing
PROBES = 64  # headers read to choose size and channels
MAX_INFERRED_SIDE = 64  # pixels; the cost of a model grows faster than the number of pixels
CHUNK = 10_000  # pictures queued at a time; each takes a kilobyte until it is read


def check_picture(path: str) -> None:
    """Refuse a picture that cannot be decoded; one that has not changed since is not decoded again."""
    with contextlib.suppress(OSError):  # the reader's error is clearer
        stat = os.stat(path)
        return _decode(path, stat.st_mtime_ns, stat.st_size)
    _decode(path, 0, 0)


@cache
def _decode(path: str, changed: int, size: int) -> None:
    read_picture(Path(path), (1, 1), 3)


@dataclass(frozen=True)
class FolderImages(Dataset[tuple[Tensor, int]]):
    """Pictures that stay on disk: item i is (uint8 [C, H, W], label). A torch DataLoader can read it with workers."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    name: str
    size: tuple[int, int]
    channels: int
    notes: tuple[str, ...] = ()  # sentences about parts of the folder that are not used

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(read_picture(Path(self.paths[index]), self.size, self.channels)), self.labels[index]

    @property
    def estimated_bytes(self) -> int:
        """The memory that the images would take."""
        return len(self) * self.channels * math.prod(self.size)

    def subset(self, index: Tensor) -> "FolderImages":
        chosen = index.tolist()
        return replace(self, paths=tuple(self.paths[i] for i in chosen), labels=tuple(self.labels[i] for i in chosen))

    def resident(self, progress: ProgressFn = no_progress) -> ImageSet:
        """Read everything into memory."""
        try:
            images = torch.empty(len(self), self.channels, *self.size, dtype=torch.uint8)
        except RuntimeError as error:
            raise MspcapsError(
                f"{self.name} needs {self.estimated_bytes} bytes, more than can be allocated: choose a smaller image "
                "size"
            ) from error

        def read(index: int) -> None:
            images[index] = self[index][0]

        self._each(read, progress)
        return ImageSet(images, torch.tensor(self.labels), self.classes, self.name)

    def check(self, progress: ProgressFn = no_progress) -> None:
        """Read every header, to report files that are not pictures before training starts rather than in the middle of
        it. This takes a fraction of the time of an epoch; truncated pictures are noticed only when they are read."""
        self._each(lambda index: read_header(Path(self.paths[index])), progress)

    def readable(self, report: Callable[[str], None] = warn, progress: ProgressFn = no_progress) -> "FolderImages":
        """Decode every picture and leave out those that cannot be read; `report` gets one sentence about them."""
        broken = dict(self._broken(lambda index: check_picture(self.paths[index]), progress))
        if len(broken) == len(self):
            raise MspcapsError(describe_broken([*broken.values()], len(self)))
        if not broken:
            return self
        report(describe_broken([*broken.values()], len(self)))
        return self.subset(torch.tensor([index for index in range(len(self)) if index not in broken]))

    def _each(self, read: Callable[[int], object], progress: ProgressFn) -> None:
        """Call `read` with every index; all broken pictures are reported in one error."""
        if errors := [error for _, error in self._broken(read, progress)]:
            raise MspcapsError(list_broken(errors))

    def _broken(self, read: Callable[[int], object], progress: ProgressFn) -> list[tuple[int, str]]:
        """Call `read` with every index, in threads -> index and error of each broken picture, in order."""
        broken: list[tuple[int, str]] = []

        def try_read(index: int) -> None:
            try:
                read(index)
            except MspcapsError as error:
                broken.append((index, str(error)))

        done = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the interpreter lock
            try:
                for start in range(0, len(self), CHUNK):
                    for _ in pool.map(try_read, range(start, min(start + CHUNK, len(self)))):
                        done += 1
                        progress(self.name, done, len(self))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return sorted(broken)


def is_picture_folder(name_or_path: str | Path) -> bool:
    """Whether this is a folder of class folders, not a data set of the catalog, an .npz file or packed parts."""
    path = Path(name_or_path).expanduser()
    return str(name_or_path) not in CATALOG and path.is_dir() and not has_manifest(path)


def throttled(log: Callable[[str], None]) -> ProgressFn:
    """A progress function that logs at most one line every five seconds."""
    last = time.monotonic()

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= 5:
            last = time.monotonic()
            log(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    return progress


def open_folder(root: Path, split: str, img_size: tuple[int, int] | None = None) -> FolderImages:
    """List the pictures of a folder with one subfolder per class; `split` is train, val, test or all.

    Without `img_size` the common size of the training pictures is used; if they differ or exceed 64 pixels, a square
    with the median of their shorter sides, at most 64. Pictures are read as grey only if all sampled ones are grey.
    """
    skipped: Skipped = Counter()
    train, validation, test, classes = list_pictures(root, skipped)
    entries = {"train": train, "val": validation, "test": test, "all": train + validation + test}[split]
    if not entries:
        raise MspcapsError(f"{root} holds no pictures for the split {split!r}: {_what_is_missing(root, split)}")
    size, channels = _common_size_and_channels([path for path, _ in train or test])
    paths, labels = zip(*entries, strict=True)
    notes = _notes(root, split, labels, classes, skipped)
    return FolderImages(paths, labels, classes, root.name, img_size or size, channels, notes)


def has_validation_folder(root: Path) -> bool:
    """Whether a folder has validation pictures of its own, besides test pictures."""
    return (root / "train").is_dir() and (root / TEST).is_dir() and any((root / name).is_dir() for name in VALIDATION)


def _what_is_missing(root: Path, split: str) -> str:
    if split == "val":
        return f"it needs the folders train, test and one called {', '.join(VALIDATION[:-1])} or {VALIDATION[-1]}"
    if (root / "train").is_dir():
        return f"there is no folder {root / TEST} (or {', '.join(VALIDATION)})"
    return "each class needs at least two"


def _notes(root: Path, split: str, labels: Sequence[int], classes: Sequence[str], skipped: Skipped) -> tuple[str, ...]:
    """What a user might not expect: files that are not pictures, pictures outside classes, classes without pictures."""
    notes = []
    if skipped:
        notes.append(f"{root} also holds {describe_skipped(skipped)}")
    parts = [place for name in SPLIT_FOLDERS if (place := root / name).is_dir()] or [root]
    stray = [
        entry.path
        for place in parts
        for entry in os.scandir(place)
        if entry.is_file() and Path(entry.path).suffix.lower() in SUFFIXES
    ]
    if stray:
        what = f"{min(stray)} lies" if len(stray) == 1 else f"{len(stray):,} pictures, such as {min(stray)}, lie"
        notes.append(f"{what} outside the class folders and will not be used")
    numbers = {*labels}
    if missing := [name for number, name in enumerate(classes) if number not in numbers]:
        names = ", ".join(missing[:MAX_NAMED]) + (" and more" if len(missing) > MAX_NAMED else "")
        notes.append(f"the {split} split of {root} has no picture of {names}: its accuracy says nothing about that")
    return tuple(notes)


def split_by_hash(names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Positions for training and for testing. Names with a small sha256 are for testing, so that pictures added later
    move none from training to testing; of two or more names, each side gets at least one."""
    digests = [hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names]
    order = sorted(range(len(names)), key=lambda i: (digests[i], i))
    count = sum(int.from_bytes(digest[:8]) < 2**64 // HELD_OUT for digest in digests)
    count = 0 if len(names) < 2 else min(max(count, 1), len(names) - 1)
    return sorted(order[count:]), sorted(order[:count])


def iterate_batches(loader: Iterable[T]) -> Iterator[T]:
    """The batches of a DataLoader, whose workers wrap an error message in a traceback: this unwraps it."""
    try:
        yield from loader
    except MspcapsError as error:
        raise MspcapsError(str(error).rpartition("MspcapsError: ")[2].strip()) from None


Entry = tuple[str, int]
TEST, VALIDATION = "test", ("val", "valid", "validation")
SPLIT_FOLDERS = ("train", TEST, *VALIDATION)


def list_pictures(root: Path, skipped: Skipped) -> tuple[list[Entry], list[Entry], list[Entry], tuple[str, ...]]:
    """The training, validation and test pictures of a folder, and its class names."""
    if not root.is_dir():
        raise MspcapsError(f"{root} is not a folder")
    if (root / "train").is_dir():
        classes = _class_folders(root / "train", root)
        train = _pictures(root / "train", classes, classes, skipped)
        validation, test = (_split_pictures(root, folder, classes, skipped) for folder in _split_folders(root))
        return train, validation, test, classes
    classes = _class_folders(root, root)
    train, test = [], []
    for name in classes:
        entries = _pictures(root, [name], classes, skipped)
        kept, held_out = split_by_hash([Path(path).relative_to(root / name).as_posix() for path, _ in entries])
        train += [entries[i] for i in kept]
        test += [entries[i] for i in held_out]
    return train, [], test, classes


def _split_folders(root: Path) -> tuple[Path | None, Path | None]:
    """The folders of the validation and of the test pictures; if there is only one, it is for testing."""
    names = [name for name in VALIDATION if (root / name).is_dir()]
    if len(names) > 1:
        raise MspcapsError(
            f"{root} has both {names[0]} and {names[1]}: rename the one to test on to 'test', or remove one"
        )
    validation = root / names[0] if names else None
    return (validation, root / TEST) if (root / TEST).is_dir() else (None, validation)


def _split_pictures(root: Path, folder: Path | None, classes: Sequence[str], skipped: Skipped) -> list[Entry]:
    """The pictures of a split, whose classes must be among those of training."""
    if folder is None:
        return []
    names = _class_folders(folder, root)
    if unknown := sorted(set(names) - set(classes)):
        raise MspcapsError(f"{folder / unknown[0]} is a class that {root / 'train'} does not have")
    return _pictures(folder, names, classes, skipped)


def _class_folders(folder: Path, root: Path) -> tuple[str, ...]:
    with as_user_error(f"cannot read {folder}"):
        folders = [item for item in sorted(folder.iterdir()) if item.is_dir() and not item.name.startswith(".")]
    for item in folders:
        if root.resolve().is_relative_to(item.resolve()):
            raise MspcapsError(f"{item} is a link back to {item.resolve()}, which contains it: remove the link")
        if to_utf8(item.name) != item.name:
            raise MspcapsError(f"the name of the class folder {str(item)!a} is not UTF-8: rename it")
    if not folders:
        raise MspcapsError(f"{folder} holds no class folders: put the pictures into {folder}/CLASS/")
    return tuple(item.name for item in folders)


def _pictures(folder: Path, names: Sequence[str], classes: Sequence[str], skipped: Skipped) -> list[Entry]:
    """Paths sorted within each class; links to folders below a class folder are not followed."""

    def refuse(error: OSError) -> None:
        raise MspcapsError(f"cannot read {error.filename}: {reason(error)}") from error

    entries = []
    for name in names:
        paths, label = sorted(pictures_below(folder / name, refuse, skipped)), classes.index(name)
        if not paths:
            raise MspcapsError(f"the class folder {folder / name} holds no {KINDS}")
        entries += [(path, label) for path in paths]
    return entries


def _common_size_and_channels(paths: Sequence[str]) -> tuple[tuple[int, int], int]:
    """Size (height, width) and channels, from the headers of pictures spread evenly over the list.

    Broken pictures are skipped unless all are broken: reading them all reports them together.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    grey, broken = True, None
    for path in paths[:: math.ceil(len(paths) / PROBES)]:
        try:
            size, is_grey = read_header(Path(path))
        except MspcapsError as error:
            broken = broken or error
            continue
        sizes[size] += 1
        grey &= is_grey
    if broken and not sizes:
        raise broken
    common = next(iter(sizes))
    if len(sizes) > 1 or max(common) > MAX_INFERRED_SIDE:
        side = min(MAX_INFERRED_SIDE, round(statistics.median(min(size) for size in sizes.elements())))
        common = (side, side)
    return common, 1 if grey else 3
