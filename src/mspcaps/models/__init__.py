"""One file per family; importing this package registers them all."""

import importlib
import pkgutil

from mspcaps.models.capsule_model import CapsuleModel
from mspcaps.models.factory import as_model, create_model, list_models, load_model
from mspcaps.models.model import Criterion, Model, Task, class_names, config_of, param_groups, unwrapped
from mspcaps.models.registry import check_name, model_options, register_model
from mspcaps.models.shipped import Card, list_pretrained, read_card, weights_path
from mspcaps.models.summary import Summary, summarize
from mspcaps.models.transfer import Transfer, transfer
from mspcaps.models.weights_file import save_weights

__all__ = [
    "CapsuleModel", "Card", "Criterion", "Model", "Summary", "Task", "Transfer", "as_model", "check_name",
    "class_names", "config_of", "create_model", "list_models", "list_pretrained", "load_model", "model_options",
    "param_groups", "read_card", "register_model", "save_weights", "summarize", "transfer", "unwrapped", "weights_path",
]  # fmt: skip

for _file in pkgutil.iter_modules(__path__):  # a new family is a new file and nothing else
    importlib.import_module(f"{__name__}.{_file.name}")
