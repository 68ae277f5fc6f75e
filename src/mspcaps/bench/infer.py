"""`mspcaps bench infer`: latency of one image and best throughput, ours and a ResNet's, in every form that works."""

import importlib.metadata
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.bench.result import CPU, Log, choose_batch, new_result, yardstick
from mspcaps.bench.timing import Effort, quantile, repeat, significant, time_interleaved, timed
from mspcaps.bench.variants import CIFAR10, Task
from mspcaps.errors import MspcapsError, first_line, silent
from mspcaps.export.graphs import to_onnx, trace
from mspcaps.export.model import describe
from mspcaps.export.runner import INPUT, open_session
from mspcaps.models import summarize
from mspcaps.models.layers import use_channels_last
from mspcaps.training.device import working_precision
from mspcaps.training.step import capture_graph

FORMS = ("eager", "channels_last", "compiled", "captured", "onnxruntime")
CONVENTIONS = {
    "data": "random images of CIFAR-10's shape in [0, 1], resident on the device",
    "forms": "eager: contiguous; channels_last: input and convolution weights; compiled: channels_last and inductor; "
    "captured (GPU): compiled and replayed as one CUDA graph, the copy of the input included; "
    "onnxruntime (CPU): the file of `mspcaps export`, with as many threads as PyTorch",
    "latency_ms": "one image, from call to finished answer; calls of all variants interleaved",
    "throughput": "images per second at the best of the batches tried",
    "ratios": "of the best forms; latency: the other's median over ours; throughput: ours over the other's; "
    "above 1 ours is faster",
}


class Forward:
    """One model in one form: eval mode, inference mode, the precision that suits the device."""

    def __init__(self, model: nn.Module, form: str, device: torch.device) -> None:
        self.model, self.form, self.device = model.to(device).eval(), form, device
        self.autocast = working_precision(device)
        self.function: Callable[[Tensor], Tensor] = self.model
        if form != "eager":
            use_channels_last(self.model)
        if form in ("compiled", "captured"):
            torch._dynamo.config.recompile_limit = 256  # one per batch size, form and model
            self.function = torch.compile(self.model, fullgraph=True, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x = self.y = torch.empty(0)

    def prepare(self, x: Tensor) -> None:
        """Use this batch from now on; compiles and captures."""
        layout = torch.contiguous_format if self.form == "eager" else torch.channels_last
        self.batch = x.to(self.device).contiguous(memory_format=layout)
        self.x = self.batch.clone()
        self.graph = None
        for _ in range(3):
            self()
        if self.form == "captured":
            self.graph = capture_graph(self.forward, warm_up=self.forward)

    def forward(self) -> None:
        enabled = self.autocast is not None
        with torch.inference_mode(), torch.autocast(self.device.type, self.autocast, enabled, cache_enabled=False):
            self.y = self.function(self.x)

    def __call__(self) -> Tensor:
        if self.graph is None:
            self.forward()
        else:
            self.x.copy_(self.batch)
            self.graph.replay()
        return self.y


class OnnxForward:
    """A file written by `mspcaps export`, or its content, in onnxruntime on the CPU."""

    def __init__(self, file: Path | bytes) -> None:
        self.session = open_session(file, torch.get_num_threads())
        self.batch: dict[str, Any] = {}

    def prepare(self, x: Tensor) -> None:
        """Use this batch from now on."""
        self.batch = {INPUT: x.numpy()}
        for _ in range(3):
            self()

    def __call__(self) -> Tensor:
        return torch.from_numpy(self.session.run(None, self.batch)[0])


Forwards = dict[tuple[str, str], Forward | OnnxForward]  # by who ("ours" or "resnet") and form


def bench_infer(
    model: str = "mspcaps_t", device: torch.device = CPU, batch_size: int | None = None, quick: bool = False,
    log: Log = silent,
) -> dict[str, Any]:  # fmt: skip
    """`batch_size` is the largest batch that throughput is tried with."""
    largest = choose_batch(batch_size, 4096 if device.type == "cuda" else 128)
    smaller = [size for size in (8, 32, 128, 512, 1024, 2048) if size < largest]
    batches = [*smaller[-1 if quick else -2 :], largest]
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    names = {"ours": model, "resnet": yardstick(model)}
    result = new_result("infer", model, device, quick, CONVENTIONS)
    result["precision"] = "fp32" if working_precision(device) is None else "bf16"
    forwards, failures = prepare(names, device, quick, log)
    if ("ours", "onnxruntime") in forwards:
        result["environment"]["software"]["onnxruntime"] = importlib.metadata.version("onnxruntime")
    log("latency of one image")
    latency = latencies(forwards, device, calls=5 if quick else 300)
    rows: dict[tuple[str, str], dict[str, Any]] = {
        key: {"form": key[1], "latency_ms": latency[key], "throughput": []} for key in forwards
    }
    for batch in batches:
        log(f"throughput at batch {batch}")
        for forward in forwards.values():
            forward.prepare(random_images(batch))
        variants = {key: repeat(forward) for key, forward in forwards.items()}
        for key, timing in time_interleaved(variants, device, Effort.for_device(device, quick).shortened()).items():
            # the longest time is the lowest rate
            times = {"median": timing.median, "lowest": max(timing.samples), "highest": min(timing.samples)}
            rate = {name: significant(batch / ms * 1000) for name, ms in times.items()}
            rows[key]["throughput"].append({"batch": batch, "images_per_second": rate})
    result["variants"] = {who: summary(who, names[who], rows) for who in names}
    return result | {"unavailable": failures, "ratios": ratios(result["variants"])}


def prepare(names: dict[str, str], device: torch.device, quick: bool, log: Log) -> tuple[Forwards, dict[str, str]]:
    """-> what runs here, and the forms that do not, with the reason."""
    forwards: Forwards = {}
    elsewhere = "onnxruntime" if device.type == "cuda" else "captured"
    forms = [form for form in FORMS if form != elsewhere]
    failures: dict[str, str] = {}
    if quick:
        failures = dict.fromkeys(forms[2:], "skipped in a quick run")
        forms = forms[:2]
    for form in forms:
        for who, name in names.items():
            log(f"preparing {name}, {form}")
            model = Task().model(name)
            try:
                if form == "onnxruntime":
                    forward: Forward | OnnxForward = OnnxForward(to_onnx(trace(model), describe(model)))
                else:
                    forward = Forward(model, form, device)
                forward.prepare(random_images(1))
            except MspcapsError as error:  # onnxruntime is not installed, or the model cannot be exported
                failures[form] = str(error)
                break
            except torch._dynamo.exc.BackendCompilerFailed as error:  # without a C++ compiler, for example
                failures[form] = first_line(error.inner_exception)
                break
            forwards[who, form] = forward
        if form in failures:  # one model alone is no comparison
            forwards.pop(("ours", form), None)
    return forwards, failures


def random_images(count: int) -> Tensor:
    shape = (count, CIFAR10.channels, *CIFAR10.native_size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def latencies(forwards: Forwards, device: torch.device, calls: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Milliseconds for one image: every variant in turn, a few calls at a time so that its caches are warm."""
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in forwards}
    burst = 10
    for _ in range(math.ceil(calls / burst)):
        for key, forward in forwards.items():
            forward()  # refills the caches, which hold the weights of the previous variant
            samples[key] += [1000 * timed(forward, device)[0] for _ in range(burst)]
    shares = {"median": 0.5, "p95": 0.95}
    return {
        key: {name: significant(quantile(times, share)) for name, share in shares.items()} | {"calls": len(times)}
        for key, times in samples.items()
    }


def summary(who: str, name: str, rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """All forms of one model, and the best of them."""
    forms = [row for (other, _), row in rows.items() if other == who]
    fastest = min(forms, key=lambda row: row["latency_ms"]["median"])
    rates = [(point["images_per_second"]["median"], row, point) for row in forms for point in row["throughput"]]
    rate, row, point = max(rates, key=lambda item: item[0])
    return {
        "model": name,
        "params": summarize(name).params,
        "forms": forms,
        "best_latency": {"form": fastest["form"], **fastest["latency_ms"]},
        "best_throughput": {"form": row["form"], "batch": point["batch"], "images_per_second": rate},
    }


def ratios(variants: dict[str, dict[str, Any]]) -> dict[str, float]:
    ours, other = variants["ours"], variants["resnet"]
    latency = other["best_latency"]["median"] / ours["best_latency"]["median"]
    rate = ours["best_throughput"]["images_per_second"] / other["best_throughput"]["images_per_second"]
    return {"latency_ours_vs_resnet": round(latency, 3), "throughput_ours_vs_resnet": round(rate, 3)}
