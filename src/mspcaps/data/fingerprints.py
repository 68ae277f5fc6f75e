"""The fingerprint of custom images, which tells if a run's data has changed since, even if its size has not."""

import hashlib
from collections import Counter
from pathlib import Path

from mspcaps.data.catalog import CATALOG
from mspcaps.data.folder import list_pictures
from mspcaps.data.formats import has_manifest
from mspcaps.errors import MspcapsError, reason
from mspcaps.files import sha256_of

MAX_READ = 256 << 20  # bytes of pictures that are read whole: about half a second


def fingerprint(name_or_path: str | Path) -> str | None:
    """A sha256 of the images and their classes; None for a published set, which never changes, and for a missing path.

    For an .npz file it is that of the file, for packed parts that of their manifest. For a folder it covers the path of
    every picture and its bytes, or only its size if there are more than 256 MB in all.
    """
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in CATALOG or not path.exists():
        return None
    try:
        if path.is_file():
            return sha256_of(path)
        if has_manifest(path):
            return sha256_of(path / "manifest.json")
        return _of_pictures(path)
    except OSError as error:
        raise MspcapsError(f"cannot read {error.filename or path}: {reason(error)}") from error


def _of_pictures(root: Path) -> str:
    train, validation, test, _ = list_pictures(root, Counter())
    pictures = sorted(Path(path) for path, _ in train + validation + test)
    sizes = [picture.stat().st_size for picture in pictures]
    whole, digest = sum(sizes) <= MAX_READ, hashlib.sha256()
    for picture, size in zip(pictures, sizes, strict=True):
        content = sha256_of(picture) if whole else size
        name = picture.relative_to(root).as_posix().encode("utf-8", "surrogateescape")
        digest.update(name + f"\0{content}\0".encode())
    return digest.hexdigest()
