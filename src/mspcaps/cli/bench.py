"""`mspcaps bench`: speed and memory on this machine."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.common import Maybe, Switch, table
from mspcaps.errors import MspcapsError
from mspcaps.files import check_writable, format_bytes
from mspcaps.progress import say


def bench(
    what: Positional[Literal["train", "infer", "families", "attack", "memory", "pixels", "votes"]],
    model: str = "mspcaps_t",
    models: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    batch_size: Maybe[int] = None,
    scaling: Switch = False,
    packed: Maybe[int] = None,
    group: Switch = False,
    quick: Switch = False,
    device: Maybe[str] = None,
    results: Path = Path("results"),
) -> None:
    """Measure speed on this machine, next to a reference in the same run: eager PyTorch and a ResNet, or foolbox.

    Args:
        what: train measures training steps; infer the forward pass; families both, for every family of models; attack a
            10-step attack on shipped weights; memory training steps on a CPU at larger image sizes; pixels the cost of
            a training step per pixel as images grow. votes lists the peak memory of each routing that has a matrix for
            every pair of capsules, next to the plain implementation.
        model: Model name, as listed by `mspcaps models`. For families: the model they are compared with.
        models: families only: measure these models instead of all.
        batch_size: Images per step; default: 128 (families on a CPU: 16; memory: 8). For infer: the largest batch to
            try. For attack: images per batch. For pixels: images per step at the largest size, 2 by default.
        scaling: train only: also measure how cost grows with image size, batch size and number of classes.
        packed: train on a GPU only: also measure this many concurrent runs, as in a sweep.
        group: train only: also measure the cost of communication between processes, with one process on its own.
        quick: Run only a few steps, to check that everything works; the figures mean nothing.
        device: cpu, cuda or mps; default: the GPU if there is one.
        results: The figures are written to bench/*.json in this folder.
    """
    from mspcaps import bench as benchmarks
    from mspcaps.bench import tables, write_result
    from mspcaps.training import choose_device

    if what != "train" and (scaling or group or packed is not None):
        raise MspcapsError("--scaling, --packed and --group work with `mspcaps bench train` only")
    if what != "families" and models:
        raise MspcapsError("--models works with `mspcaps bench families` only: use --model")
    if what == "votes":
        if quick or device or model != "mspcaps_t":
            raise MspcapsError("`mspcaps bench votes` counts bytes from shapes alone: its only option is --batch-size")
        show_votes(batch_size)
        return
    chosen = choose_device(device)
    check_writable(results / "bench")  # before minutes of measuring
    if what == "train":
        result = benchmarks.bench_train(model, chosen, batch_size, scaling, packed, quick, log, group)
    elif what == "families":
        keep = partial(write_result, results)
        result = benchmarks.bench_families(model, chosen, batch_size, models, quick, log, keep)
    else:
        run = {
            "infer": benchmarks.bench_infer, "attack": benchmarks.bench_attack, "memory": benchmarks.bench_memory,
            "pixels": benchmarks.bench_pixels,
        }[what]  # fmt: skip
        result = run(model, chosen, batch_size, quick, log)
    blocks, notes = tables.result_tables(result)
    for head, rows in blocks:
        table(head, rows, right=range(1, len(head)))
    print("\n".join(notes))
    say(f"Figures: {write_result(results, result)}")


def show_votes(batch_size: int | None) -> None:
    from mspcaps.bench.votes import BATCH, bench_votes

    rows = [
        (
            f"{cost.model}, {cost.routing}", format_bytes(cost.votes_bytes), format_bytes(cost.ours_bytes),
            format_bytes(cost.plain_bytes), f"{cost.plain_bytes / cost.ours_bytes:.1f} x",
        )
        for cost in bench_votes(batch_size)
    ]  # fmt: skip
    table(("routing", "its votes alone", "ours", "plain form", "plain / ours"), rows, right=(1, 2, 3, 4))
    print(f"peak memory of forward and backward, eager, fp32, {batch_size or BATCH} images of 3 x 32 x 32, 10 classes")


def log(line: str) -> None:
    print(f"{line} ...", flush=True)
