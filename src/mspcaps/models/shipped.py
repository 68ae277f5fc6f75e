"""Weights that ship with the package: <model>.<dataset>.safetensors in half precision, with a .json card beside each.
The names of those trained against an adversary say so, as in mspcaps_t.cifar10-linf8.

`mspcaps.create_model("mspcaps_t", pretrained="cifar10")` loads them without a network; `tools/ship.py` writes them.
"""

import dataclasses
import difflib
import fnmatch
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspcaps.errors import MspcapsError
from mspcaps.files import sha256_of
from mspcaps.models.registry import registered_models

SUFFIX = ".safetensors"
DEFAULT = "cifar10"  # `pretrained=True` means the weights for this data set


@dataclass(frozen=True)
class Card:
    """The facts about one shipped file; a test measures them again."""

    model: str
    dataset: str
    params: int
    bytes: int
    sha256: str
    accuracy: float  # percent on the whole test set, measured from this very file in fp32
    test_images: int
    measured_on: str  # device
    reference: float  # percent before the weights were rounded to half precision
    reference_of: str  # the weights that `reference` was measured from
    probe: list[int]  # predicted classes of the first ten test images of each class, in test-set order
    recipe: dict[str, Any]
    ledger: str  # path of the run's entry
    run_sha256: str  # of the full-precision weights, as the ledger has it
    provenance: str  # of the data
    licence: str

    @property
    def name(self) -> str:
        return shipped_name(self.model, self.dataset, self.recipe)

    def to_json(self) -> str:
        """One line per field."""
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in dataclasses.asdict(self).items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def shipped_name(model: str, dataset: str, recipe: dict[str, Any]) -> str:
    """mspcaps_t.cifar10 for the paper's recipe, or LaCaps's own, since it has no paper; -own or -fast for other recipes
    of ours; -linf8 if an adversary could change every pixel by 8/255."""
    adversary, kind = recipe.get("adversary"), recipe.get("name", "").partition("+")[0]
    if adversary:
        return f"{model}.{dataset}-linf{adversary['eps']:g}"
    ours = kind == "fast" or (kind == "own" and not model.startswith("lacaps"))
    return f"{model}.{dataset}{f'-{kind}' if ours else ''}"


def weights_folder() -> Path:
    return Path(__file__).parent / "weights"


def list_pretrained(pattern: str = "*") -> list[str]:
    """Names such as mspcaps_t.cifar10 that match a shell pattern, sorted."""
    names = [path.stem for path in weights_folder().glob(f"*{SUFFIX}") if path.with_suffix(".json").is_file()]
    return sorted(fnmatch.filter(names, pattern))


def read_card(name: str) -> Card:
    """The card of a shipped file."""
    path = weights_folder() / f"{name}.json"
    try:
        return Card(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise MspcapsError(f"{path} is not the card of a weights file: {error}") from error


def pretrained_path(model: str, dataset: str) -> Path:
    """The path of shipped weights; checks their size and sha256."""
    name, shipped = f"{model}.{dataset}", list_pretrained()
    if name not in shipped:
        candidates = list_pretrained(f"{model}.*") if model in registered_models() else shipped
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
        others = f" (it ships {', '.join(shipped) or 'none yet'}): train it, or name a .safetensors file instead"
        hint = f": did you mean {close[0]}?" if close else others
        raise MspcapsError(f"mspcaps ships no weights of {model} trained on {dataset!r}{hint}")
    card, path = read_card(name), weights_folder() / f"{name}{SUFFIX}"
    if path.stat().st_size != card.bytes or sha256_of(path) != card.sha256:
        raise MspcapsError(f"{path} is damaged: its size or sha256 is not that of its card; reinstall mspcaps")
    return path


def default_weights(model: str) -> Path:
    """The weights for `create_model(model, pretrained=True)`: those for CIFAR-10, or else the only ones."""
    shipped = [name.partition(".")[2] for name in list_pretrained(f"{model}.*")]
    if DEFAULT in shipped or len(shipped) == 1:
        return pretrained_path(model, DEFAULT if DEFAULT in shipped else shipped[0])
    choices = f"name one of {', '.join(shipped)}" if shipped else "mspcaps ships none of it"
    raise MspcapsError(f"pretrained is True, but {model} has no default weights: {choices}")


def weights_path(name_or_path: str | Path) -> Path:
    """Shipped name such as mspcaps_t.cifar10, or path -> path; ./NAME is a file even if NAME is a shipped name."""
    model, _, dataset = str(name_or_path).rpartition(".")
    if isinstance(name_or_path, str):
        mistyped = model in registered_models() and not _is_path(name_or_path)  # but my.weights is a missing file
        if mistyped or name_or_path in list_pretrained():
            return pretrained_path(model, dataset)
    return Path(name_or_path).expanduser()


def find_weights(model: str, pretrained: str | Path) -> Path:
    """The weights for `create_model(model, pretrained=...)`: shipped for that data set, or a weights file."""
    dataset = str(pretrained).removeprefix(f"{model}.")  # accepts the full name of a shipped file, too
    if isinstance(pretrained, str) and (f"{model}.{dataset}" in list_pretrained() or not _is_path(pretrained)):
        return pretrained_path(model, dataset)
    return Path(pretrained).expanduser()


def _is_path(text: str) -> bool:
    return text.endswith(SUFFIX) or os.sep in text or Path(text).expanduser().exists()
