"""One file per family; importing this package registers them all."""

from typing import Literal

from mspcaps.models import controls, mspcaps, resnet
from mspcaps.models.pretrained import config_of
from mspcaps.models.registry import Model, create_model, list_models, register_model
from mspcaps.models.summary import Summary, summarize

__all__ = [
    "MSPCapsName",
    "Model",
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

# For type checkers: by these names `mspcaps.create_model` is known to return an MSPCaps. A test keeps the list whole.
MSPCapsName = Literal[
    "mspcaps_l", "mspcaps_l_dr", "mspcaps_l_p2", "mspcaps_l_p3", "mspcaps_l_shared", "mspcaps_t", "mspcaps_t_dr",
    "mspcaps_t_mean", "mspcaps_t_p2", "mspcaps_t_p3", "mspcaps_t_scale16", "mspcaps_t_scale32", "mspcaps_t_scale32_16",
    "mspcaps_t_scale8", "mspcaps_t_self", "mspcaps_t_unshared",
]  # fmt: skip
