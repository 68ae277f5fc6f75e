"""Models in a folder and on the Hugging Face hub: model.safetensors, config.json, and README.md as model card.

The weights file is an ordinary one: `mspcaps predict FOLDER/model.safetensors PICTURE` works.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mspcaps import __version__
from mspcaps.errors import MspcapsError, first_line
from mspcaps.export.model import describe
from mspcaps.export.runner import require
from mspcaps.files import write_atomically
from mspcaps.models import Card, Model, config_of, list_pretrained, load_model, read_card, save_weights, unwrapped

WEIGHTS, CONFIG, README = "model.safetensors", "config.json", "README.md"
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # owner/name


def save_pretrained(model: nn.Module, folder: str | Path, licence: str | None = None) -> Path:
    """Save a model from `load_model` or `create_model` to a folder and return the folder.

    `licence` is the hub's name for the licence of your own weights, such as "mit" or "cc-by-4.0".
    """
    model = unwrapped(model)
    describe(model)  # refuses modules without a configuration
    folder, card = Path(folder).expanduser(), shipped_card(model)
    save_weights(folder / WEIGHTS, model, **getattr(model, "metadata", {}))
    write_atomically(folder / CONFIG, json.dumps(hub_config(model), indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / README, model_card(model, card, licence))
    return folder


def from_pretrained(name_or_folder: str | Path, revision: str | None = None) -> Model:
    """Load a model from a folder or from a hub repository OWNER/NAME (`revision`: branch, tag or commit).

    The model is in eval mode; `model.metadata` has its classes and recipe. Only safetensors and JSON are downloaded.
    """
    folder = Path(name_or_folder).expanduser()
    if folder.is_file() or str(name_or_folder) in list_pretrained():
        raise MspcapsError(f"{name_or_folder} is a weights file, not a folder: use load_model")
    if not folder.is_dir():
        folder = fetch(str(name_or_folder), revision)
    elif revision is not None:
        raise MspcapsError(f"{folder} is a local folder, which has no revisions: leave out revision={revision!r}")
    model = load_model(folder / WEIGHTS)
    check_config(model, folder / CONFIG)
    return model


def push_to_hub(model: nn.Module, repo_id: str, private: bool = False, licence: str | None = None) -> str:
    """Upload a model to the hub repository OWNER/NAME, creating it if needed, and return its URL.

    Log in first, with `hf auth login` or the variable HF_TOKEN.
    """
    hub: Any = require("huggingface_hub", "hub")
    check_name(repo_id)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, licence)
        try:
            url = hub.create_repo(repo_id, private=private, exist_ok=True)
            hub.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=f"Model of mspcaps {__version__}")
        except Exception as error:  # errors of the network and of the hub have no common base class
            raise MspcapsError(f"cannot upload the model to {repo_id}: {first_line(error)}") from error
    return str(url)


def fetch(repo_id: str, revision: str | None) -> Path:
    """The folder with the repository's weights and configuration in huggingface_hub's cache, downloaded if need be."""
    check_name(repo_id)
    hub: Any = require("huggingface_hub", "hub")
    try:
        folder = Path(hub.snapshot_download(repo_id, revision=revision, allow_patterns=[WEIGHTS, CONFIG]))
    except Exception as error:  # errors of the network and of the hub have no common base class
        raise MspcapsError(
            f"there is no folder {repo_id}, and it cannot be downloaded from the Hugging Face hub: {first_line(error)}"
        ) from error
    if not (folder / WEIGHTS).is_file():
        raise MspcapsError(f"{repo_id} on the Hugging Face hub has no {WEIGHTS}: it was not uploaded by mspcaps")
    return folder


def check_name(repo_id: str) -> None:
    if not REPOSITORY.fullmatch(repo_id):
        raise MspcapsError(f"{repo_id} is neither a folder nor a repository OWNER/NAME on the Hugging Face hub")


def hub_config(model: nn.Module) -> dict[str, Any]:
    """config.json, for readers and for the hub, which counts its downloads. The weights file has all of it, too."""
    config = config_of(model)
    return {
        "library_name": "mspcaps",
        "library_version": __version__,
        "architecture": config["name"],
        **{key: config[key] for key in ("num_classes", "in_chans")},
        **{key: list(config[key]) for key in ("img_size", "mean", "std")},
        "classes": list(describe(model).classes),
    }


def check_config(model: nn.Module, path: Path) -> None:
    """Refuse a folder whose files belong to two models; config.json may be missing."""
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = {key: config[key] for key in ("architecture", "num_classes", "in_chans", "img_size")}
    except (ValueError, KeyError, TypeError) as error:
        raise MspcapsError(f"{path} is not the configuration of an mspcaps model: {error!r}") from error
    for key, value in config.items():
        if value != (actual := hub_config(model)[key]):
            raise MspcapsError(f"{path} says that {key} is {value}, but the model in {WEIGHTS} beside it has {actual}")


def shipped_card(model: nn.Module) -> Card | None:
    """The card of the shipped weights if the model has them unchanged, else None."""
    config = config_of(model)
    state = model.state_dict()
    for name in list_pretrained(f"{config['name']}.*"):
        shipped = load_model(name).state_dict()
        if shipped.keys() == state.keys() and all(torch.equal(shipped[key], state[key].cpu()) for key in state):
            return read_card(name)
    return None


def model_card(model: nn.Module, card: Card | None, licence: str | None) -> str:
    """README.md: front matter for the hub, then the facts; accuracy only if it was measured."""
    task = describe(model)
    height, width = task.img_size
    params = sum(parameter.numel() for parameter in model.parameters())
    licence = "mit" if card else licence
    front = ["library_name: mspcaps", "pipeline_tag: image-classification"]
    front += [f"license: {licence}"] if licence else []
    front += ["tags:", "- capsule-network", "- image-classification", f"- {task.model}"]
    facts = [
        f"- Model: `{task.model}` of mspcaps {__version__}, {params:,} parameters",
        f"- Input: {task.channels} x {height} x {width} (channels, height, width) in [0, 1]; the model normalises it",
        f"- Classes: {', '.join(task.classes)}",
    ]
    if card:
        facts += [
            f"- Accuracy: {card.accuracy:.2f} % of the {card.test_images:,} test images of {card.dataset}, measured on "
            f"{card.measured_on}",
            f"- {card.licence}",
        ]
    use = 'import mspcaps\n\nmodel = mspcaps.from_pretrained("OWNER/NAME")  # or the path of this folder\n'
    use += 'print(mspcaps.predict(model, ["picture.png"]))\n'
    head = "\n".join(front)
    return f"---\n{head}\n---\n\n# {task.model}\n\n" + "\n".join(facts) + f"\n\n```python\n{use}```\n"
