"""The models that the app offers, and sample pictures for each: loaded on first use, then kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock

import torch

from mspcaps.data import CATALOG, ImageSet, is_cached, open_folder
from mspcaps.data.catalog import SAMPLE
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.load import load_for, trained_on
from mspcaps.models import Model, list_pretrained, load_model, read_card
from mspcaps.pages import image_url

MAX_SAMPLES = 10


@dataclass(frozen=True)
class Sample:
    """A test picture, which the model was not trained on."""

    title: str  # its true class
    picture: str  # data URL


class ModelStore:
    """Your weights files first, then the shipped ones. Your files are read at once, so that a bad one fails early."""

    def __init__(self, weights: Sequence[Path] = (), device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._lock = Lock()
        self._models: dict[str, Model] = {}
        self._samples: dict[str, list[Sample]] = {}
        self._shipped: dict[str, str] = {}
        for path in weights:
            model = self._prepare(load_model(path), str(path))
            self._models[self._free_title(f"{title_of(model)} · {file_title(path, weights)}")] = model
        cards = [read_card(name) for name in list_pretrained()]
        for card in sorted(cards, key=lambda card: (card.params // 1_000_000, card.name)):  # fast models first
            tag = card.name.removeprefix(f"{card.model}.{card.dataset}")  # such as -linf8
            self._shipped[f"{card.model} · {set_title(card.dataset)}{tag}"] = card.name
        if not self.names:
            raise MspcapsError(
                "there is no model to show: this version of mspcaps ships no weights, so name a .safetensors file "
                "with --weights; `mspcaps quickstart` makes one and prints its path"
            )

    @property
    def names(self) -> list[str]:
        return list({**self._models, **self._shipped})

    def model(self, name: object) -> Model:
        """The model in eval mode, on the device of the store."""
        with self._lock:
            if not isinstance(name, str) or name not in self.names:
                raise MspcapsError(f"there is no model {repr(name)[:80]}; the models are {', '.join(self.names)}")
            if name not in self._models:
                self._models[name] = self._prepare(load_model(self._shipped[name]), name)
            return self._models[name]

    def samples(self, name: str) -> list[Sample]:
        """One picture for each of the first classes, from the package or the user's cache; empty if neither has any."""
        model = self.model(name)
        with self._lock:
            if name not in self._samples:
                self._samples[name] = find_samples(model)
            return self._samples[name]

    def truth(self, name: object, picture: object) -> str | None:
        """The class of a sample; None for any other picture."""
        samples = self.samples(name) if isinstance(name, str) else []
        return next((sample.title for sample in samples if sample.picture == picture), None)

    def _prepare(self, model: Model, name: str) -> Model:
        if model.in_chans not in (1, 3):
            raise MspcapsError(f"{name} takes images with {model.in_chans} channels, but pictures have 1 or 3")
        return model.to(self.device).eval()

    def _free_title(self, title: str) -> str:
        """With a number if the title is taken, because the same file was named twice."""
        names = (title if number == 1 else f"{title} ({number})" for number in count(1))
        return next(name for name in names if name not in self._models)


def file_title(path: Path, others: Sequence[Path]) -> str:
    """The shortest end of the path that no other path has; with the run's folder if the name is generic."""
    whole, length = path.absolute(), 2 if path.stem in ("last", "best", "model") else 1
    for other in others:
        while other.absolute() != whole and other.absolute().parts[-length:] == whole.parts[-length:]:
            length += 1
    return "/".join(whole.parts[-length:])


def set_title(data: str) -> str:
    return CATALOG[data].title if data in CATALOG else Path(data).name


def title_of(model: Model) -> str:
    name, data = str(model.config["name"]), trained_on(model)
    return f"{name} · {set_title(data)}" if data else name


def find_samples(model: Model) -> list[Sample]:
    """Test pictures of the model's data set, exactly as evaluation feeds them to it."""
    data = trained_on(model) or ""
    try:
        if data in CATALOG:
            # the embedded sample begins with the same images as all of FashionMNIST
            data = SAMPLE if data == "fashionmnist" else data
            return one_of_each(load_for(model, data)) if is_cached(data) else []
        return from_folder(model, Path(data)) if data and Path(data).is_dir() else []
    except MspcapsError:
        return []  # samples are optional: a damaged cache must not prevent uploads


def one_of_each(data: ImageSet) -> list[Sample]:
    first = [(data.labels == label).nonzero().flatten()[:1] for label in range(len(data.classes))]
    index = torch.cat(first[:MAX_SAMPLES]).tolist()
    return [Sample(data.classes[int(data.labels[i])], image_url(data.images[i].numpy())) for i in index]


def from_folder(model: Model, root: Path) -> list[Sample]:
    """Read only the pictures that are shown."""
    pictures = replace(open_folder(root, "test", model.img_size), channels=model.in_chans)
    chosen = [pictures.labels.index(label) for label in sorted(set(pictures.labels))[:MAX_SAMPLES]]
    return [Sample(pictures.classes[pictures.labels[i]], image_url(pictures[i][0].numpy())) for i in chosen]
