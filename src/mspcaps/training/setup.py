"""What a run is made of, from its recipe and its device: images, model, plan, step."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from mspcaps.data import CATALOG, Augmentation, FolderImages, ImageSet, facts, load_dataset, open_folder
from mspcaps.data.folder import TEST_FOLDERS, is_picture_folder, throttled
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, create_model
from mspcaps.models.layers import use_channels_last
from mspcaps.training.distributed import World
from mspcaps.training.loader import Plan, StreamingPlan
from mspcaps.training.optimizer import FlatAdamW
from mspcaps.training.recipe import Recipe, filled
from mspcaps.training.step import Form, Step, compiler_works

SMALLEST = 32  # own images are enlarged to this: below it the coarsest scale has one capsule, so nothing is routed
WORTH_COMPILING = 1_000_000  # images to train on: from about here on a CPU makes up for the time to compile
STEPS = 8  # of an epoch, at least, where the batch is chosen to fit
MEASURED = 2000  # own images that mean and deviation are taken from


def default_form(device: torch.device, world: World, images: int = 0) -> Form:
    """The fastest form that the device supports; on a CPU only a run over many `images` makes up for compiling."""
    if world.size > 1:
        return "eager"
    if device.type == "cuda":
        return "captured"
    return "compiled" if device.type == "cpu" and images >= WORTH_COMPILING and compiler_works() else "eager"


def working_precision(device: torch.device) -> torch.dtype | None:
    """What the device computes in if that is not fp32."""
    return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None


def choose_device(name: str | None = None) -> torch.device:
    """A device by name; by default the GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise MspcapsError(f"there is no device {name!r}: use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MspcapsError("this PyTorch sees no GPU: use --device cpu, or install a build of PyTorch with CUDA")
    if device.type == "cuda":
        if device.index is None:  # of the processes that torchrun started on a machine each has its own
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= torch.cuda.device_count():
            raise MspcapsError(f"there is no device {str(device)!r}: this machine has {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(device)  # graphs are recorded on the current one
    return device


def load_images(
    recipe: Recipe, device: torch.device, say: Callable[[str], None] = lambda line: None
) -> tuple[ImageSet | FolderImages, ImageSet | FolderImages]:
    """Images to train on and to measure on: those of the test set, or held-out ones of the training set."""
    train, test = load_splits(recipe, device, say)
    if not recipe.held_out:
        return train, test
    if not isinstance(train, ImageSet):
        raise MspcapsError(
            f"held_out needs a data set that fits into memory, but {recipe.dataset} does not: choose a smaller "
            "img_size, or put the pictures to measure on into a test folder"
        )
    return train.split(recipe.held_out)


def load_splits(
    recipe: Recipe, device: torch.device, say: Callable[[str], None]
) -> tuple[ImageSet | FolderImages, ImageSet | FolderImages]:
    """Training and test images: on the device if they fit into half of its memory, else read as they are needed."""
    path = Path(recipe.data).expanduser()
    wanted = (recipe.img_size, recipe.img_size) if recipe.img_size else None
    if not is_picture_folder(recipe.data):
        train_set, test_set = load_dataset(recipe.data, "train", wanted), load_dataset(recipe.data, "test", wanted)
        if len(train_set.classes) == 1:
            raise MspcapsError(
                f"{recipe.data} has only one class, {train_set.classes[0]}, but training needs at least two"
            )
        size = wanted or at_least(train_set.size, SMALLEST)
        return train_set.resized(size).to(device), test_set.resized(size)
    train, test = open_folder(path, "train", wanted), open_folder(path, "test", wanted)
    if len(train.classes) == 1:
        raise MspcapsError(
            f"{recipe.data} has only one class folder, {train.classes[0]}, but training needs at least two: name the "
            "folder whose subfolders are the classes"
        )
    size = wanted or at_least(train.size, SMALLEST)
    train = replace(train, size=size)
    test = replace(test, size=size)
    if train.estimated_bytes + test.estimated_bytes > free_bytes(device) / 2:
        replace(train, paths=train.paths + test.paths).check(throttled(lambda line: say(f"checking {line} pictures")))
        return train, test
    progress = throttled(lambda line: say(f"reading {line} pictures"))
    return train.resident(progress).to(device), test.resident(progress)


def check_apart(recipe: Recipe, path: Path, option: str) -> None:
    """What a run writes among the class folders would be taken for a class the next time."""
    pictures = Path(recipe.data).expanduser()
    if not is_picture_folder(recipe.data) or not path.resolve().is_relative_to(pictures.resolve()):
        return
    beside = path.resolve().relative_to(pictures.resolve()).parts[0] not in ("train", *TEST_FOLDERS)
    if not (beside and (pictures / "train").is_dir()):
        raise MspcapsError(f"{path} lies among the class folders of {pictures}: choose another folder with --{option}")


def at_least(size: tuple[int, int], least: int) -> tuple[int, int]:
    return max(size[0], least), max(size[1], least)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError, ValueError):  # Linux; what is free without giving up caches would be too little
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30


def resolve(recipe: Recipe, train: ImageSet | FolderImages) -> Recipe:
    """The recipe with what it left to the data set filled in."""
    size = train.size[0] if train.size[0] == train.size[1] else recipe.img_size
    augment = filled(recipe).augment or default_augmentation(train.size)
    if augment.crop >= min(train.size):
        raise MspcapsError(
            f"augment.crop is {augment.crop}, which can move images of {train.size[0]} x {train.size[1]} pixels out of "
            f"view: choose less than {min(train.size)}"
        )
    return replace(filled(recipe), augment=augment, img_size=size)


def default_augmentation(size: tuple[int, int]) -> Augmentation:
    """Of own images only this is known: a small shift leaves the class as it is."""
    return Augmentation(crop=min(size) // 8)


def custom_img_size(recipe: Recipe) -> tuple[int, int]:
    """What size own images will have in training."""
    if recipe.img_size:
        return recipe.img_size, recipe.img_size
    if is_picture_folder(recipe.data):
        return at_least(open_folder(Path(recipe.data).expanduser(), "train").size, SMALLEST)
    return at_least(load_dataset(recipe.data, "train").size, SMALLEST)


def count_custom_images(recipe: Recipe) -> int | None:
    """How many own images there are now to train on; None of a published set, which does not change, and of none."""
    path = Path(recipe.data).expanduser()
    if recipe.data in CATALOG or not path.exists():
        return None
    whole = open_folder(path, "train") if is_picture_folder(path) else load_dataset(path, "train")
    return len(whole) - recipe.held_out


def fitting_batch(images: int) -> int:
    """For own images of which nobody said the batch: the largest power of two that leaves STEPS steps, 2 to 128."""
    return max(2, min(Recipe.batch_size, 1 << (images // STEPS).bit_length() >> 1))


def build_model(recipe: Recipe, train: ImageSet | FolderImages) -> Model:
    """Initial weights are a function of the seed; the global random state is left as it was."""
    if recipe.data in CATALOG:
        mean, std = facts(recipe.data).mean, facts(recipe.data).std
    else:
        mean, std = measure(train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = create_model(
            recipe.model,
            num_classes=len(train.classes),
            in_chans=train.channels,
            img_size=train.size,
            mean=mean,
            std=std,
        )
    return model


def measure(train: ImageSet | FolderImages) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel over at most MEASURED images, evenly spread, whether they are in memory or not."""
    index = torch.linspace(0, len(train) - 1, min(len(train), MEASURED)).long()
    if isinstance(train, ImageSet):
        return train.subset(index.to(train.images.device)).mean_and_std()
    items = [train[i] for i in index.tolist()]
    images, labels = torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])
    return ImageSet(images, labels, train.classes, train.name).mean_and_std()


def make_step(
    model: Model, plan: Plan, weight_decay: float, form: Form, world: World | None = None, fused: bool = True
) -> Step:
    """The model laid out for its device, its optimizer, its step. The benchmark times what this makes."""
    use_channels_last(model)
    autocast = working_precision(plan.images.device)
    optimizer = FlatAdamW(model, weight_decay, autocast or torch.float32)
    return Step(model, plan, optimizer, form, autocast, world, fused)


def make_plan(recipe: Recipe, train: ImageSet | FolderImages, device: torch.device, world: World) -> Plan:
    assert recipe.augment is not None
    task = (recipe.batch_size, recipe.augment, recipe.seed)
    if isinstance(train, ImageSet):
        return Plan(train, *task, world.rank, world.size, balance=recipe.balance)
    return StreamingPlan(train, *task, device, world.rank, world.size, balance=recipe.balance)
