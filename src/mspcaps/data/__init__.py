"""Data sets: the catalog, fetching and caching, folders of pictures, and image sets on the device.

`load_dataset("cifar10", "train")` or `load_dataset("path/to/folder", "train", img_size=64)` gives an `ImageSet`.
"""

from typing import TYPE_CHECKING

from mspcaps.data.cache import Status, cache_path, cache_root, is_cached, list_datasets, provenance, verify
from mspcaps.data.catalog import CATALOG, Augmentation, Facts, facts
from mspcaps.data.pictures import find_pictures, read_header, read_picture
from mspcaps.data.sources import get, import_files
from mspcaps.lazy import lazy_attributes

if TYPE_CHECKING:
    from mspcaps.data.folder import FolderImages, open_folder
    from mspcaps.data.imageset import ImageSet
    from mspcaps.data.load import fingerprint, load_dataset

__all__ = [
    "CATALOG", "Augmentation", "Facts", "FolderImages", "ImageSet", "Status", "cache_path", "cache_root", "facts",
    "find_pictures", "fingerprint", "get", "import_files", "is_cached", "list_datasets", "load_dataset", "open_folder",
    "provenance", "read_header", "read_picture", "verify",
]  # fmt: skip

# These need torch; the rest does not.
__getattr__ = lazy_attributes(
    __name__,
    {
        "FolderImages": "folder", "ImageSet": "imageset", "fingerprint": "load", "load_dataset": "load",
        "open_folder": "folder",
    },
)  # fmt: skip
