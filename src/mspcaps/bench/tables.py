"""The figures of a benchmark as rows of text, which the command prints and docs/speed.md shows."""

from collections.abc import Mapping
from typing import Any

from mspcaps.files import format_bytes, format_duration

Result = Mapping[str, Any]
Rows = list[tuple[str, ...]]
Table = tuple[tuple[str, ...], Rows]
TablesAndNotes = tuple[list[Table], list[str]]


def result_tables(result: Result) -> TablesAndNotes:
    """The tables of a result and the notes below them."""
    kinds = {
        "train": training, "infer": inference, "families": families, "attack": attack, "memory": memory,
        "pixels": pixels,
    }  # fmt: skip
    tables, notes = kinds[result["what"]](result)
    missing = result.get("unavailable", {}) | result.get("failed", {})
    return tables, [*notes, *busy_note(result), *(f"Without {name}: {why}" for name, why in missing.items())]


def training(result: Result) -> TablesAndNotes:
    """The comparison, the growth of cost, the concurrent runs, the group of processes."""
    more = {"scaling": scaling_table, "packed": packed_table, "group": group_table}
    tables = [variants_table(result["variants"]), *(make(result[key]) for key, make in more.items() if key in result)]
    matmul, ratios = result["matmul"], result["ratios"]
    n, kernels = matmul["n"], ratios.get("ours_vs_kernels_off")
    # other sizes were then measured eagerly, since compiling for each would take too long
    scaled_eagerly = "scaling" in result and engine_of(result["variants"]["ours"]) == "compile"
    return tables, [
        f"With our engine, {result['model']} is {number(ratios['ours_vs_reference'])} times as fast as the eager "
        f"reference and {number(ratios['ours_vs_resnet'])} times as fast as {result['variants']['resnet']['model']}.",
        *([f"Its kernels make it {number(kernels)} times as fast as without them."] if kernels else []),
        f"{machine(result)}; batch size {result['batch_size']}; synthetic images like CIFAR-10's.",
        f"“Of matmul”: relative to a {matmul['precision']} matrix product of {n} x {n}, which reaches "
        f"{number(matmul['tflops'])} TFLOP/s.",
        "* Derived from the time per step, without evaluation.",
        *(["Costs at other sizes were measured with the eager engine."] if scaled_eagerly else []),
    ]


def variants_table(variants: dict[str, Any]) -> Table:
    head = (
        "training", "ms per step", "range", "images/s", "300 epochs*", "TFLOP/s", "of matmul", "kernels", "memory",
    )  # fmt: skip
    rows: Rows = []
    for name, variant in variants.items():
        ms, how = variant["ms_per_step"], f"{engine_of(variant)}, {variant['precision']}"
        who = {"reference": "reference", "ours_kernels_off": "our engine, kernels off"}.get(name, "our engine")
        kernels = variant.get("kernels_per_step")
        rows.append((
            f"{variant['model']}, {who}, {how}", number(ms["median"]), span(ms),
            f"{variant['images_per_second']:,.0f}", format_duration(variant["seconds_300_epochs"]),
            number(variant["tflops"]), f"{100 * variant['share_of_matmul']:.1f} %",
            "-" if kernels is None else number(kernels), peak_memory(variant),
        ))  # fmt: skip
    return head, rows


def scaling_table(axes: dict[str, Any]) -> Table:
    """How the cost grows along each axis, relative to its first point."""
    rows: Rows = []
    for axis, points in axes.items():
        first = points[0]["ms_per_step"]["median"]
        for point in points:
            ms = point["ms_per_step"]["median"]
            what = f"{axis.replace('_', ' ')} {point[axis]}"
            rows.append((what, number(ms), f"{ms / first:.2f} x", f"{point['images_per_second']:,.0f}"))
    return ("cost of our engine", "ms per step", "relative", "images/s"), rows


def packed_table(packed: dict[str, Any]) -> Table:
    runs, (alone, of_all) = packed["runs"], (packed[f"ms_per_step_{which}"]["median"] for which in ("alone", "of_all"))
    rows = [("a bare step", f"{number(alone)} ms", f"{number(of_all)} ms", f"{packed['throughput_ratio']:.2f} x")]
    if sweep := packed.get("sweep"):
        alone, of_all = (sweep[f"seconds_per_epoch_{which}"] for which in ("alone", "of_all"))
        whole = (f"{number(alone)} s", f"{number(of_all)} s", f"{sweep['throughput_ratio']:.2f} x")
        rows.append(("an epoch of a sweep, with evaluation", *whole))
    return (f"{runs} runs side by side", "one run alone", f"all {runs} runs", "throughput"), [*rows]


def group_table(group: dict[str, Any]) -> Table:
    """The cost of communication between processes, with a single process."""
    names = {"alone": "no group", "grouped": "a group of one", "synchronised": "and BatchNorm synchronised"}
    relative = group | {"relative_alone": 1.0}
    rows: Rows = [
        (words, number(group[f"ms_per_step_{name}"]["median"]), f"{relative[f'relative_{name}']:.3f} x")
        for name, words in names.items()
    ]
    return ("one process", "ms per step", "relative"), rows


def engine_of(variant: dict[str, Any]) -> str:
    """Its current name; older results have other names."""
    return {"compiled": "compile", "captured": "cudagraph"}.get(variant["form"], variant["form"])


def inference(result: Result) -> TablesAndNotes:
    head = ("inference", "form", "one image, ms", "95th percentile, ms", "images/s", "batch size")
    rows: Rows = []
    for variant in result["variants"].values():
        for form in variant["forms"]:
            best = max(form["throughput"], key=lambda point: point["images_per_second"]["median"])
            rows.append((
                variant["model"], form["form"], number(form["latency_ms"]["median"]), number(form["latency_ms"]["p95"]),
                f"{best['images_per_second']['median']:,.0f}", str(best["batch"]),
            ))  # fmt: skip
    model, other, ratios = result["model"], result["variants"]["resnet"]["model"], result["ratios"]
    return [(head, rows)], [
        f"Each in its best form, {other} takes {ratios['latency_ours_vs_resnet']:.2f} times as long as {model} for one "
        f"image, and {model} has {ratios['throughput_ours_vs_resnet']:.2f} times its throughput.",
        f"{machine(result)}; {result['precision']}.",
        "Images/s are the highest of all batch sizes tried; the last column names that batch size.",
    ]


def families(result: Result) -> TablesAndNotes:
    """One row per family, the fewest parameters first."""
    head = (
        "family", "parameters", "MMAC", "ms per step", "training, images/s", "relative", "memory",
        "inference, images/s", "relative",
    )  # fmt: skip
    rows: Rows = []
    for name, family in sorted(result["families"].items(), key=lambda item: item[1]["params"]):
        train, infer = family["train"], family["infer"]
        rows.append((
            name, f"{family['params']:,}", number(family["macs"] / 1e6), number(train["ms_per_step"]["median"]),
            f"{train['images_per_second']:,.0f}", f"{number(train['relative'])} x", peak_memory(train),
            f"{infer['images_per_second']:,.0f}", f"{number(infer['relative'])} x",
        ))  # fmt: skip
    train, infer = (result["families"][result["reference"]][key] for key in ("train", "infer"))
    return [(head, rows)], [
        f"“Relative”: images per second over those of {result['reference']}, measured in turn with each family.",
        f"{machine(result)}; training: {train['form']}, {train['precision']}, batch size {result['batch_size']}; "
        f"inference: {infer['form']}, batch size {result['inference_batch_size']}; synthetic images like CIFAR-10's.",
    ]


def attack(result: Result) -> TablesAndNotes:
    head = ("attack", f"seconds for {result['images']:,} images", "range", "images/s", "fooled")
    rows: Rows = [
        (
            f"{result['model']}, {name}", number(variant["seconds"]["median"]), span(variant["seconds"]),
            f"{variant['images_per_second']:,.0f}", f"{variant['fooled']:,}",
        )
        for name, variant in result["variants"].items()
    ]  # fmt: skip
    ratio = result.get("ratios", {}).get("ours_vs_foolbox")
    return [(head, rows)], [
        *([f"Foolbox takes {number(ratio)} times as long as ours in its faster form."] if ratio else []),
        f"BIM with {result['steps']} steps and eps 8/255 on test images of CIFAR-10; batch size "
        f"{result['batch_size']:,}; PyTorch's default precision.",
        f"{machine(result)}.",
    ]


def memory(result: Result) -> TablesAndNotes:
    """Steps with freed memory given back and kept, and the runs that are refused."""
    head = ("image size", "freed memory", "ms per image", "of it in the kernel", "images/s", "peak memory")
    rows: Rows = []
    for size in result["sizes"]:
        for key, words in (("given_back", "given back to the system"), ("kept", "kept by the process")):
            cost = size[key]
            ms, share = cost["ms_per_image"], cost["system_ms_per_image"] / cost["ms_per_image"]
            rows.append((
                f"{size['img_size']}", words, number(ms), f"{100 * share:.0f} %", number(1000 / ms),
                format_bytes(int(cost["peak_memory_bytes"])),
            ))  # fmt: skip
    refused: Rows = [
        (
            f"{run['model']} at {run['img_size']} pixels", format_bytes(run["needed_bytes"]),
            format_bytes(run["free_bytes"]), "refused" if run["answer"] else "fits", f"{run['seconds']:.2f} s",
        )
        for run in result["refused"]
    ]  # fmt: skip
    factors = [
        f"by {number(size['given_back']['ms_per_image'] / size['kept']['ms_per_image'])} at {size['img_size']} pixels"
        for size in result["sizes"]
    ]
    return [(head, rows), (("run by the paper's recipe", "needs", "free", "answer", "after"), refused)], [
        "Giving freed memory back to the system, which `mspcaps train` does not do on a CPU, multiplies the time of a "
        f"step: {', '.join(factors)}.",
        f"Training steps of {result['model']}, batch size {result['batch_size']}, one thread; times are those of the "
        "processor, each measured in a new process, in turn.",
        *(f"The answer: “{run['answer']}”." for run in result["refused"] if run["answer"]),
        f"{machine(result)}.",
    ]


def pixels(result: Result) -> TablesAndNotes:
    """Cost per pixel at every size; dashes for a size that does not fit into memory."""
    head = ("image size", "batch size", "ns per pixel", "relative", "bytes per pixel", "relative")
    rows: Rows = [
        (
            f"{cost['img_size']}", f"{cost['batch_size']}", number(cost["ns_per_pixel"]),
            f"{cost['relative_time']:.2f} x", number(cost["bytes_per_pixel"]), f"{cost['relative_memory']:.2f} x",
        )
        for cost in result["sizes"]
    ]  # fmt: skip
    rows += [(side, "-", "-", "-", "-", "-") for side in result["refused"]]
    return [(head, rows)], [
        f"Training steps of {result['model']}, each with about the same number of pixels. {machine(result)}.",
        *(f"Without {side} pixels: {why}" for side, why in result["refused"].items()),
    ]


def machine(result: Result) -> str:
    """Device: NVIDIA H200; torch 2.11.0"""
    environment = result["environment"]
    software = environment["software"]
    versions = (f"{name} {software[name]}" for name in ("torch", "onnxruntime", "foolbox") if name in software)
    return f"Device: {environment['device']}; {', '.join(versions)}"


def busy_note(result: Result) -> list[str]:
    """On a busy machine not even ratios are reliable."""
    load, busy = (result["environment"][key] for key in ("load_before", "busy"))
    return [f"The machine was busy (load {load}): measure again when it is idle."] if busy else []


def span(times: dict[str, float]) -> str:
    return f"{number(times['lowest'])} - {number(times['highest'])}"


def peak_memory(variant: dict[str, Any]) -> str:
    """A dash where it was not measured, on a CPU."""
    return format_bytes(variant["peak_memory_bytes"]) if "peak_memory_bytes" in variant else "-"


def number(value: float) -> str:
    """Three significant digits, with commas between thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
