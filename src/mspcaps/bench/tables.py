"""The figures of a benchmark as rows of text, which the command prints and docs/speed.md shows."""

from typing import Any

from mspcaps.files import format_bytes, format_duration

Rows = list[tuple[str, ...]]
Table = tuple[tuple[str, ...], Rows]


def result_tables(result: dict[str, Any]) -> tuple[list[Table], list[str]]:
    """The tables of a result and the notes below them."""
    make_tables, make_notes = {
        "train": (training_tables, training_notes), "infer": (inference_tables, inference_notes),
        "families": (families_tables, families_notes), "attack": (attack_tables, attack_notes),
        "memory": (memory_tables, memory_notes), "pixels": (pixel_tables, pixel_notes),
    }[result["what"]]  # fmt: skip
    return make_tables(result), make_notes(result)


def training_tables(result: dict[str, Any]) -> list[Table]:
    """The comparison, the growth of cost, the concurrent runs, the group of processes."""
    head = (
        "training", "ms per step", "range", "images/s", "300 epochs*", "TFLOP/s", "of matmul", "kernels", "memory",
    )  # fmt: skip
    rows: Rows = []
    for name, variant in result["variants"].items():
        ms, how = variant["ms_per_step"], f"{engine_of(variant)}, {variant['precision']}"
        who = {"reference": "reference", "ours_kernels_off": "our engine, kernels off"}.get(name, "our engine")
        kernels, memory = variant.get("kernels_per_step"), variant.get("peak_memory_bytes")
        rows.append((
            f"{variant['model']}, {who}, {how}", number(ms["median"]),
            f"{number(ms['lowest'])} - {number(ms['highest'])}", f"{variant['images_per_second']:,.0f}",
            format_duration(variant["seconds_300_epochs"]), number(variant["tflops"]),
            f"{100 * variant['share_of_matmul']:.1f} %", "-" if kernels is None else number(kernels),
            "-" if memory is None else format_bytes(memory),
        ))  # fmt: skip
    tables: list[Table] = [(head, rows)]
    costs: Rows = []
    for axis, points in result.get("scaling", {}).items():
        first = points[0]["ms_per_step"]["median"]
        for point in points:
            ms = point["ms_per_step"]["median"]
            what = f"{axis.replace('_', ' ')} {point[axis]}"
            costs.append((what, number(ms), f"{ms / first:.2f} x", f"{point['images_per_second']:,.0f}"))
    if costs:
        tables.append((("cost of our engine", "ms per step", "relative", "images/s"), costs))
    if packed := result.get("packed"):
        alone, of_all = (packed[f"ms_per_step_{which}"]["median"] for which in ("alone", "of_all"))
        rows = [("a bare step", f"{number(alone)} ms", f"{number(of_all)} ms", f"{packed['throughput_ratio']:.2f} x")]
        if sweep := packed.get("sweep"):
            alone, of_all = (sweep[f"seconds_per_epoch_{which}"] for which in ("alone", "of_all"))
            whole = (f"{number(alone)} s", f"{number(of_all)} s", f"{sweep['throughput_ratio']:.2f} x")
            rows.append(("an epoch of a sweep, with evaluation", *whole))
        runs = packed["runs"]
        tables.append(((f"{runs} runs side by side", "one run alone", f"all {runs} runs", "throughput"), rows))
    if group := result.get("group"):
        tables.append(group_table(group))
    return tables


def group_table(group: dict[str, Any]) -> Table:
    """The cost of communication between processes, with a single process."""
    names = {"alone": "no group", "grouped": "a group of one", "synchronised": "and BatchNorm synchronised"}
    times = {words: group[f"ms_per_step_{name}"]["median"] for name, words in names.items()}
    rows: Rows = [(words, number(ms), f"{ms / times['no group']:.3f} x") for words, ms in times.items()]
    return ("one process", "ms per step", "relative"), rows


def engine_of(variant: dict[str, Any]) -> str:
    """Its current name; older results have other names."""
    return {"compiled": "compile", "captured": "cudagraph"}.get(variant["form"], variant["form"])


def scaled_eagerly(result: dict[str, Any]) -> bool:
    """Whether other sizes were measured with the eager engine, since compiling for each would take too long."""
    return "scaling" in result and engine_of(result["variants"]["ours"]) == "compile"


def training_notes(result: dict[str, Any]) -> list[str]:
    matmul, ratios = result["matmul"], result["ratios"]
    n, environment, kernels = matmul["n"], result["environment"], ratios.get("ours_vs_kernels_off")
    return [
        f"With our engine, {result['model']} is {number(ratios['ours_vs_reference'])} times as fast as the eager "
        f"reference and {number(ratios['ours_vs_resnet'])} times as fast as {result['variants']['resnet']['model']}.",
        *([f"Its kernels make it {number(kernels)} times as fast as without them."] if kernels else []),
        f"Device: {environment['device']}; torch {environment['software']['torch']}; batch size "
        f"{result['batch_size']}; synthetic images like CIFAR-10's.",
        f"“Of matmul”: relative to a {matmul['precision']} matrix product of {n} x {n}, which reaches "
        f"{number(matmul['tflops'])} TFLOP/s.",
        "* Derived from the time per step, without evaluation.",
        *(["Costs at other sizes were measured with the eager engine."] if scaled_eagerly(result) else []),
        *busy_note(environment),
    ]


def inference_tables(result: dict[str, Any]) -> list[Table]:
    head = ("inference", "form", "one image, ms", "95th percentile, ms", "images/s", "batch size")
    rows: Rows = []
    for variant in result["variants"].values():
        for form in variant["forms"]:
            best = max(form["throughput"], key=lambda point: point["images_per_second"]["median"])
            rows.append((
                variant["model"], form["form"], number(form["latency_ms"]["median"]), number(form["latency_ms"]["p95"]),
                f"{best['images_per_second']['median']:,.0f}", str(best["batch"]),
            ))  # fmt: skip
    return [(head, rows)]


def inference_notes(result: dict[str, Any]) -> list[str]:
    ratios, environment = result["ratios"], result["environment"]
    other, software = result["variants"]["resnet"]["model"], environment["software"]
    versions = ", ".join(f"{name} {software[name]}" for name in ("torch", "onnxruntime") if name in software)
    notes = [
        f"Each in its best form, {other} takes {ratios['latency_ours_vs_resnet']:.2f} times as long as "
        f"{result['model']} for one image, and {result['model']} has {ratios['throughput_ours_vs_resnet']:.2f} times "
        "its throughput.",
        f"Device: {environment['device']}; {versions}; {result['precision']}.",
        "Images/s are the highest of all batch sizes tried; the last column names that batch size.",
    ]
    notes += busy_note(environment)
    return notes + [f"Without {form}: {why}" for form, why in result["unavailable"].items()]


def families_tables(result: dict[str, Any]) -> list[Table]:
    """One row per family, the fewest parameters first."""
    head = (
        "family", "parameters", "MMAC", "ms per step", "training, images/s", "relative", "memory",
        "inference, images/s", "relative",
    )  # fmt: skip
    rows: Rows = []
    for name, family in sorted(result["families"].items(), key=lambda item: item[1]["params"]):
        train, infer = family["train"], family["infer"]
        memory = train.get("peak_memory_bytes")
        rows.append((
            name, f"{family['params']:,}", number(family["macs"] / 1e6), number(train["ms_per_step"]["median"]),
            f"{train['images_per_second']:,.0f}", f"{number(train['relative'])} x",
            "-" if memory is None else format_bytes(memory),
            f"{infer['images_per_second']:,.0f}", f"{number(infer['relative'])} x",
        ))  # fmt: skip
    return [(head, rows)]


def families_notes(result: dict[str, Any]) -> list[str]:
    environment, family = result["environment"], result["families"][result["reference"]]
    train, infer = family["train"], family["infer"]
    return [
        f"“Relative”: images per second over those of {result['reference']}, measured in turn with each family.",
        f"Device: {environment['device']}; torch {environment['software']['torch']}; training: {train['form']}, "
        f"{train['precision']}, batch size {result['batch_size']}; inference: {infer['form']}, batch size "
        f"{result['inference_batch_size']}; synthetic images like CIFAR-10's.",
        *busy_note(environment),
        *[f"Without {name}: {why}" for name, why in result["failed"].items()],
    ]


def attack_tables(result: dict[str, Any]) -> list[Table]:
    head = ("attack", f"seconds for {result['images']:,} images", "range", "images/s", "fooled")
    rows: Rows = []
    for name, variant in result["variants"].items():
        seconds = variant["seconds"]
        rows.append((
            f"{result['model']}, {name}", number(seconds["median"]),
            f"{number(seconds['lowest'])} - {number(seconds['highest'])}", f"{variant['images_per_second']:,.0f}",
            f"{variant['fooled']:,}",
        ))  # fmt: skip
    return [(head, rows)]


def attack_notes(result: dict[str, Any]) -> list[str]:
    environment, ratio = result["environment"], result.get("ratios", {}).get("ours_vs_foolbox")
    software = environment["software"]
    versions = ", ".join(f"{name} {software[name]}" for name in ("torch", "foolbox") if name in software)
    return [
        *([f"Foolbox takes {number(ratio)} times as long as ours in its faster form."] if ratio else []),
        f"BIM with {result['steps']} steps and eps 8/255 on test images of CIFAR-10; batch size "
        f"{result['batch_size']:,}; PyTorch's default precision.",
        f"Device: {environment['device']}; {versions}.",
        *busy_note(environment),
        *(f"Without {name}: {why}" for name, why in result["unavailable"].items()),
    ]


def memory_tables(result: dict[str, Any]) -> list[Table]:
    """Steps with freed memory given back and kept, and the runs that are refused."""
    head = ("image size", "freed memory", "ms per image", "of it in the kernel", "images/s", "peak memory")
    rows: Rows = []
    for size in result["sizes"]:
        for key, words in (("given_back", "given back to the system"), ("kept", "kept by the process")):
            ms, system, peak = (
                size[key][name] for name in ("ms_per_image", "system_ms_per_image", "peak_memory_bytes")
            )
            rows.append((
                f"{size['img_size']}", words, number(ms), f"{100 * system / ms:.0f} %", number(1000 / ms),
                format_bytes(int(peak)),
            ))  # fmt: skip
    refused: Rows = [
        (
            f"{run['model']} at {run['img_size']} pixels", format_bytes(run["needed_bytes"]),
            format_bytes(run["free_bytes"]), "refused" if run["answer"] else "fits", f"{run['seconds']:.2f} s",
        )
        for run in result["refused"]
    ]  # fmt: skip
    return [(head, rows), (("run by the paper's recipe", "needs", "free", "answer", "after"), refused)]


def memory_notes(result: dict[str, Any]) -> list[str]:
    environment = result["environment"]
    factors = [
        f"by {number(size['given_back']['ms_per_image'] / size['kept']['ms_per_image'])} at {size['img_size']} pixels"
        for size in result["sizes"]
    ]
    answers = [f"The answer: “{run['answer']}”." for run in result["refused"] if run["answer"]]
    return [
        "Giving freed memory back to the system, which `mspcaps train` does not do on a CPU, multiplies the time of a "
        f"step: {', '.join(factors)}.",
        f"Training steps of {result['model']}, batch size {result['batch_size']}, one thread; times are those of the "
        "processor, each measured in a new process, in turn.",
        *answers,
        f"Device: {environment['device']}; torch {environment['software']['torch']}.",
        *busy_note(environment),
    ]


def pixel_tables(result: dict[str, Any]) -> list[Table]:
    """Cost per pixel at every size; dashes for a size that does not fit into memory."""
    head = ("image size", "batch size", "ns per pixel", "relative", "bytes per pixel", "relative")
    rows: Rows = [
        (
            f"{cost['img_size']}", f"{cost['batch_size']}", number(cost["ns_per_pixel"]),
            f"{cost['relative_time']:.2f} x", number(cost["bytes_per_pixel"]), f"{cost['relative_memory']:.2f} x",
        )
        for cost in result["sizes"]
    ]  # fmt: skip
    return [(head, [*rows, *((side, "-", "-", "-", "-", "-") for side in result["refused"])])]


def pixel_notes(result: dict[str, Any]) -> list[str]:
    environment = result["environment"]
    return [
        f"Training steps of {result['model']}, each with about the same number of pixels. Device: "
        f"{environment['device']}; torch {environment['software']['torch']}.",
        *[f"Without {side} pixels: {why}" for side, why in result["refused"].items()],
        *busy_note(environment),
    ]


def busy_note(environment: dict[str, Any]) -> list[str]:
    """On a busy machine not even ratios are reliable."""
    load = environment["load_before"]
    return [f"The machine was busy (load {load}): measure again when it is idle."] if environment["busy"] else []


def number(value: float) -> str:
    """Three significant digits, with commas between thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
