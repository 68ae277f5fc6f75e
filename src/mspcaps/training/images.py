"""The images of a run, loaded and split as its recipe says, and the defaults that follow from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mspcaps.data import CATALOG, FolderImages, ImageSet, facts, load_dataset, open_folder
from mspcaps.data.folder import SPLIT_FOLDERS, is_picture_folder, throttled
from mspcaps.data.imageset import fold_numbers
from mspcaps.data.load import has_validation
from mspcaps.errors import MspcapsError
from mspcaps.models.layers import LEAST_STD
from mspcaps.training.device import free_bytes
from mspcaps.training.limits import check_validation
from mspcaps.training.memory import check_memory
from mspcaps.training.recipe import Recipe, load_recipe

Images = ImageSet | FolderImages
MIN_SIDE = 32  # custom images are enlarged to this: below it the coarsest scale has one capsule, so nothing is routed
CUSTOM_IMAGES = "pictures"  # their recipe
MIN_STEPS = 8  # per epoch, when the batch size is chosen to fit
MAX_MEASURED = 2000  # custom images over which mean and deviation are computed


def load_images(
    recipe: Recipe, device: torch.device, log: Callable[[str], None] = lambda line: None, processes: int = 1
) -> tuple[Images, Images | None, Images]:
    """Images to train on, images to choose the epoch on, if any, and images to measure on: the test set, or held-out
    training images. They are kept on the device if they fit into half its memory, else read when needed."""
    own = has_validation(recipe.data)
    if own and recipe.validation:
        raise MspcapsError(
            f"validation is {recipe.validation}, but {recipe.data} has validation images of its own: leave it at 0"
        )
    check_validation(recipe, own)
    splits = ("train", "test", "val") if own else ("train", "test")
    train, test, *validation = (open_split(recipe, split) for split in splits)
    if len(train.classes) == 1:
        folder = isinstance(train, FolderImages)
        raise MspcapsError(
            f"{recipe.data} has only one class{' folder' if folder else ''}, {train.classes[0]}, but training needs at "
            f"least two{': name the folder whose subfolders are the classes' if folder else ''}"
        )
    parts = (train, test, *validation)
    for note in dict.fromkeys(note for part in parts if isinstance(part, FolderImages) for note in part.notes):
        log(f"note: {note}")
    size = training_size(recipe, train)
    resident = 0 if isinstance(train, FolderImages) else len(train)  # a folder is read into memory only if it fits
    check_memory(recipe, device, len(train.classes), train.channels, size, resident, processes)
    train, test, *validation = read_if_they_fit([resized(part, size) for part in parts], device, log)
    if isinstance(train, ImageSet):
        train = train.to(device)
    if recipe.held_out:
        train, test = hold_out(recipe, train, "held_out")
    if recipe.folds:
        train, test = split_fold(recipe, train)
    if recipe.validation:
        train, *validation = hold_out(recipe, train, "validation")
    return train, validation[0] if validation else None, test


def hold_out(recipe: Recipe, train: Images, field: str) -> tuple[Images, ImageSet]:
    """-> (the remaining training images, as many held-out ones as the recipe's field says)."""
    if not isinstance(train, ImageSet):
        raise MspcapsError(
            f"{field} needs a data set that fits into memory, but {recipe.dataset} does not: choose a smaller img_size"
            + (", or put the pictures to measure on into a test folder" if field == "held_out" else "")
        )
    return train.split(getattr(recipe, field), field)


def split_fold(recipe: Recipe, train: Images) -> tuple[Images, Images]:
    """-> (the images of the other folds, the images of the recipe's fold)."""
    labels = torch.as_tensor(train.labels).cpu()
    counts = labels.bincount(minlength=len(train.classes))
    if counts.min() < recipe.folds:
        raise MspcapsError(
            f"folds is {recipe.folds}, but {recipe.dataset} has only {counts.min()} training images of "
            f"{train.classes[counts.argmin()]}: choose fewer folds, or add images of it"
        )
    in_fold = fold_numbers(labels, recipe.folds) == recipe.fold
    return train.subset((~in_fold).nonzero().flatten()), train.subset(in_fold.nonzero().flatten())


def read_if_they_fit(parts: list[Images], device: torch.device, log: Callable[[str], None]) -> list[Images]:
    """Read the pictures of folders now if all fit into half of the memory; else check their headers only."""
    folders = [part for part in parts if isinstance(part, FolderImages)]
    if not folders:
        return parts
    if sum(part.estimated_bytes for part in folders) > free_bytes(device) / 2:
        paths = tuple(path for part in folders for path in part.paths)
        replace(folders[0], paths=paths).check(throttled(lambda line: log(f"checking {line} pictures")))
        return parts
    progress = throttled(lambda line: log(f"reading {line} pictures"))
    return [part.resident(progress) for part in folders]


def open_split(recipe: Recipe, split: str) -> Images:
    """One split of the recipe's data in its own size; the pictures of a folder are not read yet."""
    if is_picture_folder(recipe.data):
        pictures, notes = open_folder(Path(recipe.data).expanduser(), split), list[str]()
        kept = pictures.readable(notes.append) if recipe.skip_broken else pictures
        return replace(kept, notes=(*kept.notes, *notes))
    return load_dataset(recipe.data, split, facts(recipe.data).native_size if recipe.data in CATALOG else None)


def resized(images: Images, size: tuple[int, int]) -> Images:
    """The images in another size; pictures of a folder will be read in it."""
    return images.resized(size) if isinstance(images, ImageSet) else replace(images, size=size)


def training_size(recipe: Recipe, train: Images) -> tuple[int, int]:
    """The recipe's image size, or else that of the data set, but at least MIN_SIDE."""
    if recipe.img_size:
        return recipe.img_size, recipe.img_size
    height, width = facts(recipe.data).img_size if recipe.data in CATALOG else train.size
    return max(height, MIN_SIDE), max(width, MIN_SIDE)


def measure_custom_images(recipe: Recipe) -> tuple[int | None, tuple[int, int] | None]:
    """How many custom images there are to train on, and the size that they are trained in; None for a published set,
    which does not change, and for a missing path."""
    if recipe.data in CATALOG or not Path(recipe.data).expanduser().exists():
        return None, None
    train = open_split(recipe, "train")
    size = training_size(recipe, train)
    if recipe.folds:
        train, _ = split_fold(recipe, train)
    return len(train) - recipe.held_out - recipe.validation, size


def fitting_batch(images: int) -> int:
    """The default batch size for custom images: the largest power of two, 2 to 128, that leaves MIN_STEPS steps."""
    return max(2, min(Recipe.batch_size, 1 << (images // MIN_STEPS).bit_length() >> 1))


def recipe_for(data: str | Path, **changes: Any) -> Recipe:
    """The recipe for pictures of your own, with a batch size that fits their number, and any fields changed."""
    recipe = load_recipe(CUSTOM_IMAGES)
    recipe = replace(recipe, data=str(data), model=changes.get("model", recipe.model))
    if "batch_size" not in changes and (images := measure_custom_images(recipe.replace(**changes))[0]) is not None:
        changes["batch_size"] = fitting_batch(images)
    return recipe.replace(**changes)


def normalization(recipe: Recipe, train: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel; for custom images, over at most MAX_MEASURED of them, evenly spread."""
    if recipe.data in CATALOG:
        return facts(recipe.data).mean, facts(recipe.data).std
    index = torch.linspace(0, len(train) - 1, min(len(train), MAX_MEASURED)).long()
    chosen = train.subset(index)
    resident = chosen.to("cpu") if isinstance(chosen, ImageSet) else chosen.resident()  # mps has no float64
    mean, std = resident.mean_and_std()
    return mean, tuple(max(deviation, LEAST_STD) for deviation in std)


def check_outside(recipe: Recipe, path: Path, option: str) -> None:
    """Refuse to write among the class folders: the next run would take the files for a class."""
    pictures = Path(recipe.data).expanduser()
    if not is_picture_folder(recipe.data) or not path.resolve().is_relative_to(pictures.resolve()):
        return
    beside = path.resolve().relative_to(pictures.resolve()).parts[0] not in SPLIT_FOLDERS
    if not (beside and (pictures / "train").is_dir()):
        raise MspcapsError(f"{path} lies among the class folders of {pictures}: choose another folder with --{option}")
