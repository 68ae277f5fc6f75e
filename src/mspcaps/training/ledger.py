"""The ledger: one JSON per finished run, written once, never edited by hand."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from mspcaps.errors import MspcapsError
from mspcaps.files import write_json
from mspcaps.training.recipe import Recipe, differences, filled

REPEATS = "repeats"  # a ledger inside the ledger: runs of it that were made a second time


def entry_path(results: Path, recipe: Recipe) -> Path:
    return results / recipe.dataset / recipe.model / f"{recipe.run_name}.json"


def write_entry(results: Path, recipe: Recipe, entry: dict[str, Any]) -> Path:
    path = entry_path(results, recipe)
    write_json(path, entry)
    return path


def read_entry(path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MspcapsError(f"{path} is not a ledger entry: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), dict):
        raise MspcapsError(f"{path} is not a ledger entry: it has no recipe")
    return entry


def last_accuracy(results: Path, recipe: Recipe) -> float:
    """In percent, of a run that the ledger has."""
    return float(read_entry(entry_path(results, recipe))["accuracy"]["last"])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


def software() -> dict[str, str]:
    from mspcaps import __version__

    versions = {"mspcaps": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def git_commit() -> str | None:
    """Of the package, marked "-dirty" if files of it were changed since; MSPCAPS_COMMIT says it where the tree came
    without its history."""
    if commit := os.environ.get("MSPCAPS_COMMIT"):
        return commit

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # installed into somebody's project it is not of their commit
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def is_in_ledger(results: Path, recipe: Recipe, images: int | None = None) -> bool:
    """Whether the run is done. An entry of its name that tells of another recipe is neither skipped nor overwritten,
    nor is one of another number of training images, if there are known to be so many `images` now."""
    path = entry_path(results, recipe)
    if not path.is_file():
        return False
    recipe = filled(recipe)  # as in the ledger; of own images it is not known here what is left to them
    entry = read_entry(path)
    differing = [key for key in differences(recipe, entry["recipe"]) if getattr(recipe, key) is not None]
    if differing:
        raise MspcapsError(
            f"{path} is of a run with another {differing[0]}: remove it, or give the new run another name"
        )
    before = entry.get("images", images)  # older entries do not say
    if images is not None and before != images:
        raise MspcapsError(
            f"the data has changed since {path} was written, from {before:,} training images to {images:,}: train with "
            "--overwrite to replace it, or give the new run another name"
        )
    return True
