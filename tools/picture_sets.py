"""Fetches three sets of real pictures through npm and apt-get, as folders of classes.

    python -m tools.picture_sets FOLDER

makes FOLDER/emoji (npm emoji-datasource-google: 64 x 64, drawn, 9 classes), FOLDER/stamps (Debian
tuxpaint-stamps-default: photographs and drawings of any size, with transparency) and FOLDER/icons (Debian
oxygen-icon-theme: 48 x 48). docs/own_data.md has the accuracy of `mspcaps train --data` on them.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

FEWEST = 40  # pictures of a class; smaller classes are left out


def fetch(command: list[str], place: Path) -> Path:
    """The file that a package manager downloads into the folder."""
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (file,) = (path for path in place.iterdir() if path.is_file())
    return file


def unpack_deb(name: str, place: Path) -> Path:
    subprocess.run(["dpkg-deb", "-x", fetch(["apt-get", "download", name], place), "files"], cwd=place, check=True)
    return place / "files"


def emoji(place: Path) -> list[tuple[Path, str]]:
    """Every emoji and its category."""
    with tarfile.open(fetch(["npm", "pack", "emoji-datasource-google@16.0.0"], place)) as package:
        package.extractall(place, filter="data")
    entries = json.loads((place / "package" / "emoji.json").read_text())
    pictures = place / "package" / "img" / "google" / "64"
    labelled = [(pictures / entry["image"], entry["category"]) for entry in entries]
    return [(path, category.lower().replace(" & ", "_")) for path, category in labelled if path.is_file()]


def stamps(place: Path) -> list[tuple[Path, str]]:
    """Every stamp and its subject: animals, food, people and the like."""
    root = unpack_deb("tuxpaint-stamps-default", place) / "usr/share/tuxpaint/stamps"
    parts = [(path, path.relative_to(root).parts) for path in root.rglob("*.png")]
    return [(path, names[0]) for path, names in parts if not path.stem.endswith("_mirror")]


def icons(place: Path) -> list[tuple[Path, str]]:
    """Every icon of 48 pixels and its purpose; without links, which are other names of the same icon."""
    root = unpack_deb("oxygen-icon-theme", place) / "usr/share/icons/oxygen/base/48x48"
    return [(path, path.parent.name) for path in root.glob("*/*.png") if not path.is_symlink()]


def main(folder: Path) -> None:
    for name, find in {"emoji": emoji, "stamps": stamps, "icons": icons}.items():
        (folder / name).mkdir(parents=True)  # must be new: pictures of an earlier fetch would stay in it
        with tempfile.TemporaryDirectory() as place:
            labelled = find(Path(place))
            counts = Counter(label for _, label in labelled)
            for path, label in labelled:
                if counts[label] >= FEWEST:
                    target = folder / name / label / path.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if target.exists():  # another subject of the class has a picture of that name
                        target = target.with_name(f"{path.parent.name}-{path.name}")
                    shutil.copy(path, target)
        classes = {label: count for label, count in counts.most_common() if count >= FEWEST}
        print(f"{name}: {sum(classes.values()):,} pictures of {len(classes)} classes: {classes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
