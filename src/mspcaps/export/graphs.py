"""From a model to a graph: torch.export, and ONNX made from it. The batch size is dynamic, everything else fixed."""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from mspcaps.errors import MspcapsError, first_line
from mspcaps.export.runner import INPUT, OUTPUT, Metadata, open_session, require
from mspcaps.models import config_of

METADATA_FILE = "metadata.json"  # inside a .pt2 file


def fp32_eval_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode, in fp32, on the CPU: the rounding of a GPU may exceed the tolerance of the check."""
    return copy.deepcopy(model).to("cpu", torch.float32).eval()


def trace(model: nn.Module) -> ExportedProgram:
    """The forward pass of `fp32_eval_copy`."""
    config, copied = config_of(model), fp32_eval_copy(model)
    example = torch.zeros(2, config["in_chans"], *config["img_size"])  # a batch of 1 would be taken as constant
    with exporting(config["name"]):
        return torch.export.export(copied, (example,), dynamic_shapes=({0: Dim("batch")},))


def to_onnx(program: ExportedProgram, metadata: Metadata) -> bytes:
    """An ONNX file with its metadata, without the source file names that the exporter adds."""
    require("onnx", "onnx")
    require("onnxscript", "onnx")
    with exporting(metadata.model):
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False,
            input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=({0: "batch"},),
        )  # fmt: skip
    assert exported is not None
    file = exported.model_proto
    graph = file.graph
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph):
        del item.metadata_props[:]
    return with_metadata(file, metadata)


def with_metadata(file: Any, metadata: Metadata) -> bytes:
    """`file` is an onnx.ModelProto."""
    del file.metadata_props[:]
    for key, value in metadata.to_strings().items():
        file.metadata_props.add(key=key, value=value)
    return file.SerializeToString()


def to_pt2(program: ExportedProgram, metadata: Metadata) -> bytes:
    """A torch.export file; `torch.export.load(path).module()` is the model again."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # contains paths of this machine
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={METADATA_FILE: json.dumps(metadata.to_strings())})
    return buffer.getvalue()


def onnx_runner(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """Runs the content of a file in onnxruntime: images float32 -> scores."""
    session = open_session(content, torch.get_num_threads())
    return lambda images: session.run(None, {INPUT: images})[0]


def pt2_runner(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """Runs the content of a file in PyTorch: images float32 -> scores."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def run(images: np.ndarray) -> np.ndarray:
        return module(torch.from_numpy(images)).numpy()

    return run


@contextlib.contextmanager
def exporting(name: str) -> Iterator[None]:
    """Silence the exporters and turn their long errors, which have no common base class, into one line."""
    try:
        with quiet():
            yield
    except (MemoryError, MspcapsError):
        raise
    except Exception as error:
        raise MspcapsError(f"{name} cannot be exported: {first_line(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters, which print about torchvision, which is not needed, and about upcoming features."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
