"""From a model to a graph: torch.export, and ONNX made from it. The batch is free, everything else is fixed."""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from mspcaps.errors import MspcapsError, first_line
from mspcaps.export.metadata import INPUT, OUTPUT, Metadata, required
from mspcaps.export.runner import open_session
from mspcaps.models import config_of

METADATA_FILE = "metadata.json"  # inside a .pt2 file
T = TypeVar("T")


def fp32_eval_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, in fp32, on the CPU: a GPU may round more than files may differ."""
    return copy.deepcopy(model).to("cpu", torch.float32).eval()


def traced(model: nn.Module) -> ExportedProgram:
    """The forward pass of `fp32_eval_copy`."""
    config = config_of(model)
    twin = fp32_eval_copy(model)
    example = torch.zeros(2, config["in_chans"], *config["img_size"])  # of a batch of 1 the 1 would be taken as fixed
    return attempt(lambda: torch.export.export(twin, (example,), dynamic_shapes=({0: Dim("batch")},)), config["name"])


def to_onnx(program: ExportedProgram, about: Metadata) -> bytes:
    """An ONNX file, its metadata included. Names of files and lines, which the exporter notes, are left out."""
    required("onnx", "onnx")
    required("onnxscript", "onnx")
    made = attempt(
        lambda: torch.onnx.export(
            program, dynamo=True, verbose=False,
            input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=({0: "batch"},),
        ),
        about.model,
    )  # fmt: skip
    assert made is not None
    file = made.model_proto
    graph = file.graph
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph):
        del item.metadata_props[:]
    return with_metadata(file, about)


def with_metadata(file: Any, about: Metadata) -> bytes:
    """`file` is an onnx.ModelProto."""
    del file.metadata_props[:]
    for key, value in about.to_strings().items():
        file.metadata_props.add(key=key, value=value)
    return file.SerializeToString()


def to_pt2(program: ExportedProgram, about: Metadata) -> bytes:
    """A torch.export file; `torch.export.load(path).module()` is the model again."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names files of this machine
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={METADATA_FILE: json.dumps(about.to_strings())})
    return buffer.getvalue()


def onnx_runner(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """The file's content in onnxruntime: images float32 -> scores."""
    session = open_session(content, torch.get_num_threads())
    return lambda images: session.run(None, {INPUT: images})[0]


def pt2_runner(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """What is in the file, loaded again: images float32 -> scores."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def run(images: np.ndarray) -> np.ndarray:
        return module(torch.from_numpy(images)).numpy()

    return run


def attempt(export: Callable[[], T], name: str) -> T:
    """One sentence instead of the exporter's page; what goes wrong in there has no common exception."""
    try:
        with quiet():
            return export()
    except (MemoryError, MspcapsError):
        raise
    except Exception as error:
        raise MspcapsError(f"{name} cannot be exported: {first_line(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporters talk: of torchvision, which is not needed, and of features to come."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
