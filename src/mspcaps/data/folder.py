"""A folder of pictures as a data set: ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/* split by us.

The folder of test pictures may be called val, valid or validation as well.

Without a split in the folder one fifth of each class is held out: the pictures whose sha256 of their path below the
class folder is smallest. The same files give the same split on every machine.
"""

import hashlib
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mspcaps.data.catalog import CATALOG
from mspcaps.data.imageset import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.files import to_utf8
from mspcaps.pictures import pictures_below, read_form, read_picture

T = TypeVar("T")
Progress = Callable[[str, int, int | None], None]  # what is being read, items so far, items in all if known
HELD_OUT = 5  # one picture in five
PROBES = 64  # headers read to choose size and channels
LARGEST_INFERRED = 64  # the cost of a model grows faster than pixels
AT_A_TIME = 10_000  # pictures handed to the threads; each takes a kilobyte until it is read
NAMED = 3  # broken pictures; of more only the number is told


@dataclass(frozen=True)
class FolderImages(Dataset[tuple[Tensor, int]]):
    """Pictures left on the disk: item i is (uint8 [C, H, W], label). A torch DataLoader can read it with workers."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    name: str
    size: tuple[int, int]
    channels: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(read_picture(Path(self.paths[index]), self.size, self.channels)), self.labels[index]

    @property
    def estimated_bytes(self) -> int:
        """What the images would take in memory."""
        return len(self) * self.channels * math.prod(self.size)

    def resident(self, progress: Progress = lambda what, done, total: None) -> ImageSet:
        """Read everything into memory."""
        try:
            images = torch.empty(len(self), self.channels, *self.size, dtype=torch.uint8)
        except RuntimeError as error:
            raise MspcapsError(
                f"{self.name} needs {self.estimated_bytes} bytes, but there is less memory: choose a smaller image size"
            ) from error

        def read(index: int) -> None:
            images[index] = self[index][0]

        self._each(read, progress)
        return ImageSet(images, torch.tensor(self.labels), self.classes, self.name)

    def check(self, progress: Progress = lambda what, done, total: None) -> None:
        """Look at every header: where pictures are read as they are needed, files that are none are to be known before.
        It takes a small part of one epoch's reading; what is cut off further down is found when read."""
        self._each(lambda index: read_form(Path(self.paths[index])), progress)

    def _each(self, read: Callable[[int], object], progress: Progress) -> None:
        """Every picture by its number, in threads; the broken ones are named together."""
        broken: list[tuple[int, MspcapsError]] = []

        def one(index: int) -> None:
            try:
                read(index)
            except MspcapsError as error:
                broken.append((index, error))

        done = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the interpreter lock
            try:
                for start in range(0, len(self), AT_A_TIME):
                    for _ in pool.map(one, range(start, min(start + AT_A_TIME, len(self)))):
                        done += 1
                        progress(self.name, done, len(self))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if broken:  # all of them at once: nobody wants to start anew after each
            reasons = [str(error) for _, error in sorted(broken, key=lambda item: item[0])]
            more = f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
            raise MspcapsError("; ".join(reasons[:NAMED]) + more)


def is_picture_folder(name_or_path: str | Path) -> bool:
    """Whether a name or path means pictures in class folders: not a set of the catalog, an .npz or packed parts."""
    path = Path(name_or_path).expanduser()
    return str(name_or_path) not in CATALOG and path.is_dir() and not has_manifest(path)


def has_manifest(folder: Path) -> bool:
    """Whether it is a folder of packed parts."""
    try:
        return (folder / "manifest.json").is_file()
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path | str, error: OSError) -> MspcapsError:
    return MspcapsError(f"cannot read {folder}: {error.strerror or error}")


def throttled(say: Callable[[str], None], seconds: float = 5.0) -> Progress:
    """Says how far long work has come, at most every so many seconds."""
    last = time.monotonic()

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            say(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    return progress


def open_folder(root: Path, split: str, img_size: tuple[int, int] | None = None) -> FolderImages:
    """List the pictures of a folder with one subfolder per class; `split` is train, test or all.

    Without `img_size` the common size of the training pictures is used; if they differ or exceed 64 pixels, a square
    with the median of their shorter sides, at most 64. Pictures are read as grey only if all those sampled are grey.
    """
    train, test, classes = _listing(root)
    chosen = {"train": train, "test": test, "all": train + test}[split]
    if not chosen:
        missing = (
            f"there is no folder {root / 'test'} (or {', '.join(TEST_FOLDERS[1:])})"
            if (root / "train").is_dir()
            else "each class needs at least two"
        )
        raise MspcapsError(f"{root} holds no pictures for the split {split!r}: {missing}")
    size, channels = _common_form([path for path, _ in train or test])
    paths, labels = zip(*chosen, strict=True)
    return FolderImages(paths, labels, classes, root.name, img_size or size, channels)


def split_by_hash(names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Positions for training and for testing, both in the given order; a single picture is for training."""
    order = sorted(
        range(len(names)), key=lambda i: (hashlib.sha256(names[i].encode("utf-8", "surrogateescape")).digest(), i)
    )
    count = 0 if len(names) < 2 else max(1, round(len(names) / HELD_OUT))
    return sorted(order[count:]), sorted(order[:count])


def loaded(loader: Iterable[T]) -> Iterator[T]:
    """The batches of a DataLoader. Its workers wrap what is wrong with a picture into a traceback: only the sentence is
    told."""
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except MspcapsError as error:
            raise MspcapsError(str(error).rpartition("MspcapsError: ")[2].strip()) from None
        yield batch


Entry = tuple[str, int]
TEST_FOLDERS = ("test", "val", "valid", "validation")


def _listing(root: Path) -> tuple[list[Entry], list[Entry], tuple[str, ...]]:
    """Training pictures, test pictures and class names of a folder."""
    if not root.is_dir():
        raise MspcapsError(f"{root} is not a folder")
    if (root / "train").is_dir():
        classes = _class_folders(root / "train", root)
        train = _pictures(root / "train", classes, classes)
        place = _test_folder(root)
        if place is None:
            return _flat(train), [], classes
        held = _class_folders(place, root)
        if unknown := sorted(set(held) - set(classes)):
            raise MspcapsError(f"{place / unknown[0]} is a class that {root / 'train'} does not have")
        return _flat(train), _flat(_pictures(place, held, classes)), classes
    classes = _class_folders(root, root)
    train, test = [], []
    for label, found in _pictures(root, classes, classes):
        kept, held_out = split_by_hash([Path(path).relative_to(root / classes[label]).as_posix() for path in found])
        train.append((label, [found[i] for i in kept]))
        test.append((label, [found[i] for i in held_out]))
    return _flat(train), _flat(test), classes


def _test_folder(root: Path) -> Path | None:
    """test, or else the one that is called validation in some way."""
    found = [name for name in TEST_FOLDERS if (root / name).is_dir()]
    if len(found) > 1 and found[0] != "test":
        raise MspcapsError(f"{root} has both {found[0]} and {found[1]}: rename the one to test on to 'test'")
    return root / found[0] if found else None


def _class_folders(folder: Path, root: Path) -> tuple[str, ...]:
    try:
        folders = [item for item in sorted(folder.iterdir()) if item.is_dir() and not item.name.startswith(".")]
    except OSError as error:
        raise _unreadable(folder, error) from error
    for item in folders:
        if root.resolve().is_relative_to(item.resolve()):
            raise MspcapsError(f"{item} is a link back to {item.resolve()}, which contains it: remove the link")
        if to_utf8(item.name) != item.name:
            raise MspcapsError(f"the name of the class folder {str(item)!a} is not UTF-8: rename it")
    if not folders:
        raise MspcapsError(f"{folder} holds no class folders; put the pictures into {folder}/CLASS/")
    return tuple(item.name for item in folders)


def _pictures(folder: Path, names: Sequence[str], classes: Sequence[str]) -> list[tuple[int, list[str]]]:
    """(label, sorted paths) of each class; links to folders below a class folder are not followed."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error.filename, error) from error

    found = []
    for name in names:
        paths = sorted(pictures_below(folder / name, onerror=refuse))
        if not paths:
            raise MspcapsError(f"the class folder {folder / name} holds no PNG, JPEG, BMP, WebP or GIF picture")
        found.append((classes.index(name), paths))
    return found


def _flat(pictures: list[tuple[int, list[str]]]) -> list[Entry]:
    return [(path, label) for label, paths in pictures for path in paths]


def _common_form(paths: Sequence[str]) -> tuple[tuple[int, int], int]:
    """Size (height, width) and channels, from the headers of pictures spread evenly over the list.

    Broken ones are passed over unless all are: whoever reads the pictures names them together.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    grey, broken = True, None
    for path in paths[:: math.ceil(len(paths) / PROBES)]:
        try:
            size, is_grey = read_form(Path(path))
        except MspcapsError as error:
            broken = broken or error
            continue
        sizes[size] += 1
        grey &= is_grey
    if broken and not sizes:
        raise broken
    common = next(iter(sizes))
    if len(sizes) > 1 or max(common) > LARGEST_INFERRED:
        side = min(LARGEST_INFERRED, round(statistics.median(min(size) for size in sizes.elements())))
        common = (side, side)
    return common, 1 if grey else 3
