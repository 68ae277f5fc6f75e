"""One file per family; importing this package registers them all."""

from mspcaps.models import controls, mspcaps, resnet
from mspcaps.models.pretrained import config_of
from mspcaps.models.registry import create_model, list_models, register_model
from mspcaps.models.summary import Summary, summarize

__all__ = [
    "Summary",
    "config_of",
    "controls",
    "create_model",
    "list_models",
    "mspcaps",
    "register_model",
    "resnet",
    "summarize",
]
